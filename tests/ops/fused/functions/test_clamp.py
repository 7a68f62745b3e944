"""Bounds."""

import torch

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36),), torch.clamp, {"min": -0.5, "max": 1.0}),
    Case(((4, 36),), torch.clamp, {"min": 0.25}),
    Case(((4, 36),), torch.clamp, {"max": 0.25}),
]


@every(CASES)
def test_clamp(case: Case, dtype: torch.dtype) -> None:
    check("clamp", case, dtype)
