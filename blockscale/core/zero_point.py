# SPDX-License-Identifier: BSD-3-Clause
"""Zero points, codes that stand for 0 under `asym`, and offsets (numerics.md, 3.6, 3.8)."""

import torch
from torch import Tensor

from blockscale.core.arithmetic.bits import FLT_MAX
from blockscale.core.format import Format
from blockscale.core.rounding import nearest_even


def choose(low: Tensor, step: Tensor, fmt: Format) -> Tensor:
    """The zero point of each block of a format with `asym`: low then gets the lowest code.

    int32, or of the format's type of zero points.

    low: float32, the smallest value of each block, at most 0; step: float32, what the block's
    stored scale means. Both have the scale's shape, which is that of the result.
    """
    lowest, highest = fmt.element.limits(fmt.wide)
    if fmt.zero is not None:
        zero = lowest - low / step
        return fmt.zero.store_any(torch.where(zero.isnan(), 0.0, zero))
    zero = lowest - nearest_even(low / step)
    zero = torch.where(zero.isnan(), 0.0, zero).clamp(lowest, highest)
    return zero.to(torch.int32)


def expand(zero_point: Tensor | None, fmt: Format, shape: torch.Size) -> Tensor | None:
    """The zero points of blocks -> float32 that broadcasts to a tensor of `shape`; None stays."""
    if zero_point is None:
        return None
    return fmt.block.expand(zero_point.to(torch.float32), shape)


def offset(low: Tensor, step: Tensor, fmt: Format) -> Tensor:
    """The offset of each block, float32, of a format that has one: low gets the lowest value.

    low, step: as in `choose`.
    """
    lowest = fmt.element.limits(fmt.wide)[0]
    found = low - step * lowest + 0.0  # of 0 and -0 neither is the smaller: b is never -0
    return torch.where(found.isnan(), 0.0, found).clamp(-FLT_MAX, FLT_MAX)


def expand_offset(
    stored: Tensor | None, outer: Tensor | None, fmt: Format, shape: torch.Size
) -> Tensor | None:
    """The offsets of blocks as stored -> float32 that broadcasts to a tensor of `shape`."""
    if stored is None or fmt.offset is None:
        return None
    return (fmt.offset.block or fmt.block).expand(fmt.offset.value(stored, outer), shape)
