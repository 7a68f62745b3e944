"""Scales that cannot be stored as they were chosen (docs/numerics.md, 3.3 to 3.5)."""

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.arithmetic.bits import divide
from blockscale.core.format import Format
from blockscale.core.scale import FloatScale, PowerOfTwo


def saturates(low: Tensor, high: Tensor, fmt: Format) -> Tensor:
    """Whether the scale of each block lies outside what can be stored: bool [scale's shape].

    low, high: the range of each block, as `ranges` gives it.
    """
    a, scale = reference.numerator(low, high, fmt), fmt.scale
    if isinstance(scale, FloatScale):
        raw = reference.quotient(low, high, fmt).abs()
        return (a > 0) & ((raw > scale.high) | (raw < scale.low))
    if isinstance(scale, PowerOfTwo):
        power = scale.power(torch.where(a > 0, a, 1.0), fmt.levels) + fmt.fraction_bits
        vanished = (divide(a, fmt.levels.value) == 0) & (scale.rule == "nearest")
        return (a > 0) & (vanished | (power > 127) | (power < (-127 if scale.byte else -126)))
    ratio, _ = scale.ratio(a, fmt.levels, torch.zeros_like(a, dtype=torch.bool))
    return (a > 0) & (ratio < scale.inner.element.smallest_normal)
