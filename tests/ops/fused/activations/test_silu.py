"""The activation silu."""

import torch
import torch.nn.functional as F

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36),), F.silu),
    Case(((2, 3, 20),), F.silu),
]


@every(CASES)
def test_silu(case: Case, dtype: torch.dtype) -> None:
    check("silu", case, dtype)
