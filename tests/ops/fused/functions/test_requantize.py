"""Codes that become other codes."""

import torch

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36),), torch.clone),
    Case(((2, 3, 20),), torch.clone),
]


@every(CASES)
def test_requantize(case: Case, dtype: torch.dtype) -> None:
    check("requantize", case, dtype)
