"""The activation leaky ReLU."""

import torch
import torch.nn.functional as F

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((4, 36),), F.leaky_relu),
    Case(((4, 36),), F.leaky_relu, {"negative_slope": 0.3}),
]


@every(CASES)
def test_leaky_relu(case: Case, dtype: torch.dtype) -> None:
    check("leaky_relu", case, dtype)
