"""Reciprocals."""

import torch

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36),), torch.reciprocal, positive=True),
    Case(((2, 3, 20),), torch.reciprocal, positive=True),
]


@every(CASES)
def test_reciprocal(case: Case, dtype: torch.dtype) -> None:
    check("reciprocal", case, dtype)
