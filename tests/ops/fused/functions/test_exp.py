"""Exponentials."""

import torch

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36),), torch.exp),
    Case(((2, 3, 20),), torch.exp),
]


@every(CASES)
def test_exp(case: Case, dtype: torch.dtype) -> None:
    check("exp", case, dtype)
