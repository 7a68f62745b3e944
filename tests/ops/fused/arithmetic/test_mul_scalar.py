"""A tensor times a number."""

import torch

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36),), torch.mul, {"other": 0.3}),
    Case(((2, 3, 20),), torch.mul, {"other": -8.0}),
]


@every(CASES)
def test_mul_scalar(case: Case, dtype: torch.dtype) -> None:
    check("mul_scalar", case, dtype)
