# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with
tests/gpu/test_cuda_reference.py: `hard_inputs`, `SPELLINGS`.
"""

import torch

import blockscale as bs
from blockscale.core.rounding import ROUNDINGS

RULES = ("floor", "ceil", "rceil", "even", "tosa", "nearest")


SPELLINGS = [
    *map(str, bs.formats().values()),
    *(f"{e}:group32:e8m0/{r}" for e in ("e4m3", "e2m1", "int8", "log4") for r in RULES),
    *(f"int8:tile16x32:pow2/{r}" for r in RULES),
    *(f"int8:group64:fp32:{r}" for r in ROUNDINGS[1:]),
    *(f"e2m3:group64@0:bf16:{r}" for r in ROUNDINGS[1:]),
    "int8:channel0:fp16:half:recip", "int4:group32:fp32:full", "int4:group32:(uint4:channel0:fp32)",
    "e2m1:group16:e4m3:recip", "int12:token:e8m0/tosa:full", "uint3:group7:fp16:asym",
    "ternary:tensor:fp32", "binary:group32:e8m0/nearest",
]  # fmt: skip


def hard_inputs(dtype):
    """Normal numbers, wide exponents, ties, zeros, subnormals, huge and non-finite values."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(96, 203, generator=g)
    x[8:16] *= torch.exp2(torch.randint(-140, 120, (8, 203), generator=g).float())
    x[16:24] = torch.randint(-300, 300, (8, 203), generator=g) / 2
    x[24:26] = 0
    x[26:28] = torch.randn(2, 203, generator=g) * 1e-39
    x[28:30] = torch.randn(2, 203, generator=g) * 1e38
    x[30, 5], x[31, 100], x[32, 60] = torch.nan, torch.inf, -torch.inf
    return x.to(dtype)
