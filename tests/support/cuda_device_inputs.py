# SPDX-License-Identifier: BSD-3-Clause
"""Numbers beside those where one code turns over to the next."""

import math

import torch
from torch import Tensor

from blockscale.core.parse import parse


def beside(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Each number as dtype has it, and its neighbours: [rows, n] -> [rows, 3 n]."""
    near = x.to(dtype)
    bits = near.view(torch.int32 if dtype == torch.float32 else torch.int16)
    found = torch.stack([bits - 1, bits, bits + 1], 2).flatten(1)
    return torch.where(near.repeat_interleave(3, 1) == 0, 0, found).view(dtype)


def turning(dtype: torch.dtype, count: int) -> Tensor:
    """Rows with a largest number of any fraction and all of its halves and 3 / 4, of both signs."""
    small = dtype == torch.float16
    fractions = 1 + torch.rand(count, 1, dtype=torch.float64)
    fractions[: count // 4] = 1 + torch.arange(count // 4)[:, None] / 2 ** (6 if small else 7)
    powers = 2.0 ** torch.randint(-3 if small else -17, 4 if small else 60, (count, 1)).double()
    largest = (fractions * powers).to(dtype).double()
    shares = 2.0 ** -torch.arange(9.0, dtype=torch.float64)
    found = beside((largest * torch.cat([shares[1:], shares * 0.75])).float(), dtype)
    found[:, ::2] *= -1
    row = torch.cat([largest.to(dtype), found, torch.zeros(count, 3, dtype=dtype)], 1)
    return torch.nn.functional.pad(row, (0, -row.shape[1] % 32))


def midpoints(fmt: str) -> Tensor:
    """Values of the format's element, what lies halfway, and one float32 to each side."""
    element = parse(fmt).element
    patterns = torch.arange(2**element.bits, dtype=torch.uint8)
    values = element.decode(element.from_bits(patterns)).double()
    values = values[values.isfinite()].unique()
    x = torch.cat([values, (values[1:] + values[:-1]) / 2, values[-1:] * 1.25, values[:1] * 1.25])
    ends = torch.tensor([math.inf, -math.inf])
    x = torch.cat([x.float(), x.float().nextafter(ends[0]), x.float().nextafter(ends[1]), ends])
    return torch.cat([x, torch.tensor([0.0, -0.0, math.nan, 2.0**-149, -(2.0**-149), 3e38])])
