"""The activation hardsigmoid."""

import torch
import torch.nn.functional as F

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36),), F.hardsigmoid),
    Case(((2, 3, 20),), F.hardsigmoid),
]


@every(CASES)
def test_hardsigmoid(case: Case, dtype: torch.dtype) -> None:
    check("hardsigmoid", case, dtype)
