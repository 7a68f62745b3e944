# SPDX-License-Identifier: BSD-3-Clause
"""Scales that cannot be stored as they were chosen (docs/numerics.md, 3.3 to 3.5)."""

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.arithmetic.bits import divide
from blockscale.core.format import Format
from blockscale.core.reference import Ranges
from blockscale.core.scale import FloatScale, PowerOfTwo
from blockscale.core.scales import CodeScale


def saturates(low: Tensor, high: Tensor, fmt: Format, outer: Tensor | None = None) -> Tensor:
    """Whether the scale of each block lies outside what can be stored: bool [scale's shape].

    low, high: the range of each block, as `ranges` gives it; outer: an outer scale that is given
    """
    a, scale = reference.numerator(low, high, fmt), fmt.scale
    if isinstance(scale, FloatScale | CodeScale):
        raw = reference.quotient(low, high, fmt).abs()
        return (a > 0) & ((raw > scale.high) | (raw < scale.low))
    if isinstance(scale, PowerOfTwo):
        power = scale.power(torch.where(a > 0, a, 1.0), fmt.levels) + fmt.fraction_bits
        vanished = (divide(a, fmt.levels.value) == 0) & (scale.rule == "nearest")
        return (a > 0) & (vanished | (power > 127) | (power < (-127 if scale.byte else -126)))
    ratio, _ = scale.ratio(a, fmt.levels, torch.zeros_like(a, dtype=torch.bool), outer)
    return (a > 0) & (ratio < scale.inner.element.smallest_normal)


_SLAB = 1 << 22  # elements looked at at a time: of large weights, floats beside them take memory


def not_finite(values: Tensor) -> int:
    """How many of these values are NaN or infinite."""
    if values.numel() and not any(values.stride()):  # one number in all places, as stand-ins have
        return 0 if values[(0,) * values.ndim].isfinite() else values.numel()
    return sum(int((~slab.isfinite()).sum()) for slab in _slabs(values))


def told_of_odd(weight: Tensor) -> str:
    """How many numbers of a weight are not finite, in words; empty if none are."""
    odd = not_finite(weight)
    return f"{odd} of {weight.numel()} weights are NaN or infinite" if odd else ""


def block_ranges(stored: Tensor, fmt: Format) -> Ranges:
    """The range of each block of a stored weight, of a large one a slab of rows at a time."""
    rows = stored.ndim > 1 and not fmt.block.flat
    whole = not rows or fmt.block.scale_shape(tuple(stored.shape))[0] != stored.shape[0]
    slabs = [stored] if whole else _slabs(stored)
    parts = [reference.ranges(slab, fmt) for slab in slabs]
    return Ranges(*map(torch.cat, zip(*parts, strict=True)))


def _slabs(values: Tensor) -> list[Tensor]:
    """The rows of a tensor, about _SLAB elements at a time; all of it where there are no rows."""
    if values.numel() <= _SLAB or values.ndim == 0:
        return [values]
    rows = max(1, _SLAB * values.shape[0] // values.numel())
    return list(torch.split(values, rows))
