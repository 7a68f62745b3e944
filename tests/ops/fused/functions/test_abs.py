"""Magnitudes."""

import torch

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36),), torch.abs),
    Case(((2, 3, 20),), torch.abs),
]


@every(CASES)
def test_abs(case: Case, dtype: torch.dtype) -> None:
    check("abs", case, dtype)
