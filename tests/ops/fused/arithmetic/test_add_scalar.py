"""A tensor plus a number."""

import torch

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36),), torch.add, {"other": 0.3}),
    Case(((2, 3, 20),), torch.add, {"other": -2.0, "alpha": 0.5}),
]


@every(CASES)
def test_add_scalar(case: Case, dtype: torch.dtype) -> None:
    check("add_scalar", case, dtype)
