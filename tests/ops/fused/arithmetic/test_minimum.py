"""The smaller of each two elements."""

import torch

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36), (4, 36)), torch.minimum),
    Case(((3, 5, 20), (20,)), torch.minimum, rows=False),
]


@every(CASES)
def test_minimum(case: Case, dtype: torch.dtype) -> None:
    check("minimum", case, dtype)
