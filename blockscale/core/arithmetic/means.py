# SPDX-License-Identifier: BSD-3-Clause
"""Means of magnitudes that no order of summation changes (docs/numerics.md, 3.2).

Each magnitude becomes a whole number of units of 2^(e - 30), where 2^e is about the largest
magnitude of its block. Sums of whole numbers are exact, so a block may be summed in pieces.
"""

import torch
from torch import Tensor

from blockscale.core.arithmetic.bits import exponent, pow2


def unit_exponent(largest: Tensor) -> Tensor:
    """The largest finite magnitude of each block [...] float32 -> e [...] int32; 0 for a zero."""
    return exponent(torch.where(largest > 0, largest, 1.0)).clamp(min=-126)


def in_units(size: Tensor, power: Tensor) -> Tensor:
    """Finite magnitudes [...] float32 -> units of 2^(power - 30), rounded down [...] int64.

    power: `unit_exponent` of the block of each, broadcastable to `size`.
    """
    shift = 30 - power  # two factors: 2^156 is not a float32
    half = shift.div(2, rounding_mode="floor")
    return (size * pow2(half) * pow2(shift - half)).to(torch.int64)


def mean_of(total: Tensor, count: Tensor, power: Tensor) -> Tensor:
    """Sums of units [...] int64 of `count` elements each -> their mean [...] float32; 0 of none."""
    mean = total.to(torch.float32) / count.clamp(min=1).to(torch.float32)
    return mean * 2.0**-30 * pow2(power)
