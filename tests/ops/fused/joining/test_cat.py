"""Tensors of unequal formats, one behind the other."""

import torch

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36), (4, 36), (4, 20)), lambda *xs, dim: torch.cat(xs, dim), {"dim": -1}),
    Case(((4, 36), (2, 36)), lambda *xs: torch.cat(xs), rows=False),
    Case(((4, 36),), lambda x: torch.cat([x]), name="one"),
]


@every(CASES)
def test_cat(case: Case, dtype: torch.dtype) -> None:
    check("cat", case, dtype)
