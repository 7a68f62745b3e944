"""The activation relu6."""

import torch
import torch.nn.functional as F

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36),), F.relu6),
    Case(((2, 3, 20),), F.relu6),
]


@every(CASES)
def test_relu6(case: Case, dtype: torch.dtype) -> None:
    check("relu6", case, dtype)
