"""The larger of each two elements."""

import torch

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36), (4, 36)), torch.maximum),
    Case(((3, 5, 20), (20,)), torch.maximum, rows=False),
]


@every(CASES)
def test_maximum(case: Case, dtype: torch.dtype) -> None:
    check("maximum", case, dtype)
