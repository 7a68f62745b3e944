"""Tensors of unequal formats, side by side."""

import torch

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36), (4, 36), (4, 36)), lambda *xs, dim: torch.stack(xs, dim), {"dim": 1}),
    Case(((4, 20), (4, 20)), lambda *xs: torch.stack(xs), rows=False),
]


@every(CASES)
def test_stack(case: Case, dtype: torch.dtype) -> None:
    check("stack", case, dtype)
