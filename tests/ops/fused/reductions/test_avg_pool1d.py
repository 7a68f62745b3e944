"""Means of windows over 1 dimension."""

import torch
import torch.nn.functional as F

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((2, 3, 20),), F.avg_pool1d, {"kernel_size": [2]}),
    Case(
        ((2, 3, 20),),
        F.avg_pool1d,
        {
            "kernel_size": [3],
            "stride": [2],
            "padding": [1],
            "ceil_mode": True,
            "count_include_pad": False,
        },
    ),
]


@every(CASES)
def test_avg_pool1d(case: Case, dtype: torch.dtype) -> None:
    check("avg_pool1d", case, dtype)
