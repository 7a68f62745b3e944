"""Zero points: the code that stands for 0 under `asym` (docs/numerics.md, 3.6, 4 and 5)."""

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.rounding import nearest_even


def choose(low: Tensor, step: Tensor, fmt: Format) -> Tensor:
    """The zero point of each block, int32, of a format with `asym`: low then gets the lowest code.

    low: float32, the smallest value of each block, at most 0; step: float32, what the block's
    stored scale means. Both have the scale's shape, which is that of the result.
    """
    lowest, highest = fmt.element.limits(fmt.wide)
    zero = lowest - nearest_even(low / step)
    zero = torch.where(zero.isnan(), 0.0, zero).clamp(lowest, highest)
    return zero.to(torch.int32)


def expand(zero_point: Tensor | None, fmt: Format, shape: torch.Size) -> Tensor | None:
    """The zero points of blocks -> float32 that broadcasts to a tensor of `shape`; None stays."""
    if zero_point is None:
        return None
    return fmt.block.expand(zero_point.to(torch.float32), shape)
