"""Negatives."""

import torch

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36),), torch.neg),
    Case(((2, 3, 20),), torch.neg),
]


@every(CASES)
def test_neg(case: Case, dtype: torch.dtype) -> None:
    check("neg", case, dtype)
