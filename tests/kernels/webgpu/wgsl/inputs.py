# SPDX-License-Identifier: BSD-3-Clause
"""Hard numbers: every exponent, subnormals, infinities and NaN, ties and their neighbours."""

import math

import torch
from torch import Tensor

FEW = torch.tensor([
    0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 2.0**-126, 2.0**-149, -(2.0**-149),
    2.0**-126 - 2.0**-149, 3.4028234663852886e38, -3.4028234663852886e38, 2.0**127, 1.5, 0.5,
])  # fmt: skip


def any_bits(count: int, seed: int = 0) -> Tensor:
    """Random bit patterns, the exponents at the ends more often: float32 [count]."""
    made = torch.Generator().manual_seed(seed)
    raw = torch.randint(-(2**31), 2**31, (count,), generator=made).to(torch.int32)
    ends = torch.tensor([0, 1, 2, 126, 127, 128, 252, 253, 254, 255])
    field = ends[torch.randint(0, 10, (count,), generator=made)].to(torch.int32)
    moved = (raw & -0x7F800001) | (field << 23)
    return torch.where(torch.rand(count, generator=made) < 0.5, moved, raw).view(torch.float32)


def beside(x: Tensor, ulps: int = 1) -> Tensor:
    """float32 [n] -> each number and its neighbours, of both signs."""
    near = [x.view(torch.int32) + k for k in range(-ulps, ulps + 1)]
    found = torch.cat(near).view(torch.float32)
    return torch.cat([found, -found])
