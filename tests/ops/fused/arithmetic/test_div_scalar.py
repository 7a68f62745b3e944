"""A tensor divided by a number."""

import torch

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36),), torch.div, {"other": 0.3}),
    Case(((2, 3, 20),), torch.div, {"other": -8.0}),
]


@every(CASES)
def test_div_scalar(case: Case, dtype: torch.dtype) -> None:
    check("div_scalar", case, dtype)
