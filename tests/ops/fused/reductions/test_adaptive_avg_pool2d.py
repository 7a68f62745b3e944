"""Means of a given number of windows over 2 dimensions."""

import torch
import torch.nn.functional as F

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((2, 3, 8, 20),), F.adaptive_avg_pool2d, {"output_size": [1, 1]}),
    Case(((2, 3, 8, 20),), F.adaptive_avg_pool2d, {"output_size": [3, 3]}),
]


@every(CASES)
def test_adaptive_avg_pool2d(case: Case, dtype: torch.dtype) -> None:
    check("adaptive_avg_pool2d", case, dtype)
