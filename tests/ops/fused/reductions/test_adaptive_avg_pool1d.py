"""Means of a given number of windows over 1 dimension."""

import torch
import torch.nn.functional as F

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((2, 3, 20),), F.adaptive_avg_pool1d, {"output_size": [1]}),
    Case(((2, 3, 20),), F.adaptive_avg_pool1d, {"output_size": [3]}),
]


@every(CASES)
def test_adaptive_avg_pool1d(case: Case, dtype: torch.dtype) -> None:
    check("adaptive_avg_pool1d", case, dtype)
