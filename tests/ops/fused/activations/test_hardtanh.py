"""The activation hardtanh."""

import torch
import torch.nn.functional as F

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36),), F.hardtanh),
    Case(((4, 36),), F.hardtanh, {"min_val": -0.25, "max_val": 1.5}),
]


@every(CASES)
def test_hardtanh(case: Case, dtype: torch.dtype) -> None:
    check("hardtanh", case, dtype)
