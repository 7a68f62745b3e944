"""Inverse square roots."""

import torch

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36),), torch.rsqrt, positive=True),
    Case(((2, 3, 20),), torch.rsqrt, positive=True),
]


@every(CASES)
def test_rsqrt(case: Case, dtype: torch.dtype) -> None:
    check("rsqrt", case, dtype)
