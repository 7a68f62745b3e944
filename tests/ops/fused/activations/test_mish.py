"""The activation mish."""

import torch
import torch.nn.functional as F

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36),), F.mish),
    Case(((2, 3, 20),), F.mish),
]


@every(CASES)
def test_mish(case: Case, dtype: torch.dtype) -> None:
    check("mish", case, dtype)
