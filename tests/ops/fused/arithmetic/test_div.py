"""The quotient of two tensors."""

import torch

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36), (4, 36)), torch.div, positive=True),
    Case(((3, 5, 20), (5, 1)), torch.div, positive=True, rows=False),
]


@every(CASES)
def test_div(case: Case, dtype: torch.dtype) -> None:
    check("div", case, dtype)
