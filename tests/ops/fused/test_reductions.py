# SPDX-License-Identifier: BSD-3-Clause
"""Sums, extremes and pools against the plain composition."""

import torch
import torch.nn.functional as F

from tests.support.fused_cases import Case, check, every

FLOAT32 = (torch.float32,)  # torch has no such pool in bfloat16 on a CPU

CASES: dict[str, list[Case]] = {
    "adaptive_avg_pool1d": [
        Case(((2, 3, 20),), F.adaptive_avg_pool1d, {"output_size": [1]}),
        Case(((2, 3, 20),), F.adaptive_avg_pool1d, {"output_size": [3]}),
    ],
    "adaptive_avg_pool2d": [
        Case(((2, 3, 8, 20),), F.adaptive_avg_pool2d, {"output_size": [1, 1]}),
        Case(((2, 3, 8, 20),), F.adaptive_avg_pool2d, {"output_size": [3, 3]}),
    ],
    "amax": [
        Case(((4, 3, 20),), torch.amax, {"dim": [1, 2], "keepdim": True}),
        Case(((4, 3, 20),), torch.amax, {"dim": [1]}),
        Case(((4, 36),), lambda x: torch.amax(x), rows=False, name="all"),
    ],
    "amin": [
        Case(((4, 3, 20),), torch.amin, {"dim": [1, 2], "keepdim": True}),
        Case(((4, 3, 20),), torch.amin, {"dim": [1]}),
        Case(((4, 36),), lambda x: torch.amin(x), rows=False, name="all"),
    ],
    "argmax": [
        Case(((4, 3, 20),), torch.argmax, {"dim": -1}),
        Case(((4, 3, 20),), torch.argmax, {"dim": 1, "keepdim": True}),
        Case(((4, 36),), lambda x: torch.argmax(x), rows=False, name="all"),
    ],
    "avg_pool1d": [
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
    ],
    "avg_pool2d": [
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
    ],
    "avg_pool3d": [
        Case(((2, 3, 4, 4, 20),), F.avg_pool3d, {"kernel_size": [2]}, dtypes=FLOAT32),
        Case(
            ((2, 3, 4, 4, 20),),
            F.avg_pool3d,
            {
                "kernel_size": [3, 3, 3],
                "stride": [2, 2, 2],
                "padding": [1, 1, 1],
                "ceil_mode": True,
                "count_include_pad": False,
                "divisor_override": 5,
            },
            dtypes=FLOAT32,
        ),
    ],
    "max_pool1d": [
        Case(((2, 3, 20),), F.max_pool1d, {"kernel_size": [2]}),
        Case(
            ((2, 3, 20),),
            F.max_pool1d,
            {"kernel_size": [3], "stride": [2], "padding": [1], "dilation": [1], "ceil_mode": True},
        ),
    ],
    "max_pool2d": [
        Case(((2, 3, 8, 20),), F.max_pool2d, {"kernel_size": [2]}),
        Case(
            ((2, 3, 8, 20),),
            F.max_pool2d,
            {
                "kernel_size": [3, 3],
                "stride": [2, 2],
                "padding": [1, 1],
                "dilation": [1, 1],
                "ceil_mode": True,
            },
        ),
    ],
    "max_pool3d": [
        Case(((2, 3, 4, 4, 20),), F.max_pool3d, {"kernel_size": [2]}),
        Case(
            ((2, 3, 4, 4, 20),),
            F.max_pool3d,
            {
                "kernel_size": [3, 3, 3],
                "stride": [2, 2, 2],
                "padding": [1, 1, 1],
                "dilation": [1, 1, 1],
                "ceil_mode": True,
            },
        ),
    ],
    "mean": [
        Case(((4, 3, 20),), torch.mean, {"dim": [-1], "keepdim": True}),
        Case(((4, 3, 20),), torch.mean, {"dim": [1]}),
        Case(((4, 36),), lambda x: torch.mean(x), rows=False, name="all"),
    ],
    "sum": [
        Case(((4, 3, 20),), torch.sum, {"dim": [-1], "keepdim": True}),
        Case(((4, 3, 20),), torch.sum, {"dim": [1]}),
        Case(((4, 36),), lambda x: torch.sum(x), rows=False, name="all"),
    ],
}


@every(CASES, 12)
def test_the_composition(name: str, case: Case, dtype: torch.dtype) -> None:
    check(name, case, dtype)
