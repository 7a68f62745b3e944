"""The sum of two tensors."""

import torch

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36), (4, 36)), torch.add),
    Case(((4, 36), (4, 36)), torch.add, {"alpha": -1.5}),
    Case(((3, 5, 20), (20,)), torch.add, rows=False),
]


@every(CASES)
def test_add(case: Case, dtype: torch.dtype) -> None:
    check("add", case, dtype)
