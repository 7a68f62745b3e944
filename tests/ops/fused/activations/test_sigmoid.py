"""The activation sigmoid."""

import torch

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36),), torch.sigmoid),
    Case(((2, 3, 20),), torch.sigmoid),
]


@every(CASES)
def test_sigmoid(case: Case, dtype: torch.dtype) -> None:
    check("sigmoid", case, dtype)
