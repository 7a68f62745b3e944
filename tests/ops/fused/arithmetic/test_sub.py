"""The difference of two tensors."""

import torch

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36), (4, 36)), torch.sub),
    Case(((4, 36), (4, 36)), torch.sub, {"alpha": -1.5}),
    Case(((3, 5, 20), (20,)), torch.sub, rows=False),
]


@every(CASES)
def test_sub(case: Case, dtype: torch.dtype) -> None:
    check("sub", case, dtype)
