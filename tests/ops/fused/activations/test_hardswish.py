"""The activation hardswish."""

import torch
import torch.nn.functional as F

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36),), F.hardswish),
    Case(((2, 3, 20),), F.hardswish),
]


@every(CASES)
def test_hardswish(case: Case, dtype: torch.dtype) -> None:
    check("hardswish", case, dtype)
