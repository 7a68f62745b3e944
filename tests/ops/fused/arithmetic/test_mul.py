"""The product of two tensors."""

import torch

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36), (4, 36)), torch.mul),
    Case(((3, 1, 20), (1, 5, 20)), torch.mul, rows=False),
]


@every(CASES)
def test_mul(case: Case, dtype: torch.dtype) -> None:
    check("mul", case, dtype)
