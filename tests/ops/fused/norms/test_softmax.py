"""softmax over the last and over another dimension."""

import torch

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36),), torch.softmax, {"dim": -1}),
    Case(((3, 4, 20),), torch.softmax, {"dim": 1}),
]


@every(CASES)
def test_softmax(case: Case, dtype: torch.dtype) -> None:
    check("softmax", case, dtype)
