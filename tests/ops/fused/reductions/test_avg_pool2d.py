"""Means of windows over 2 dimensions."""

import torch
import torch.nn.functional as F

from tests.ops.fused.cases import Case, check, every

CASES = [
    Case(((2, 3, 8, 20),), F.avg_pool2d, {"kernel_size": [2]}),
    Case(
        ((2, 3, 8, 20),),
        F.avg_pool2d,
        {
            "kernel_size": [3, 3],
            "stride": [2, 2],
            "padding": [1, 1],
            "ceil_mode": True,
            "count_include_pad": False,
            "divisor_override": 5,
        },
    ),
]


@every(CASES)
def test_avg_pool2d(case: Case, dtype: torch.dtype) -> None:
    check("avg_pool2d", case, dtype)
