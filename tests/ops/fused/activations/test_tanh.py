"""The activation tanh."""

import torch

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36),), torch.tanh),
    Case(((2, 3, 20),), torch.tanh),
]


@every(CASES)
def test_tanh(case: Case, dtype: torch.dtype) -> None:
    check("tanh", case, dtype)
