"""The activation relu."""

import torch

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36),), torch.relu),
    Case(((2, 3, 20),), torch.relu),
]


@every(CASES)
def test_relu(case: Case, dtype: torch.dtype) -> None:
    check("relu", case, dtype)
