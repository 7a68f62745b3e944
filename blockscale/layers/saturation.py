# SPDX-License-Identifier: BSD-3-Clause
"""What a format cannot hold: scales that cannot be stored as they were chosen (docs/numerics.md,
3.3 to 3.5), and the signs of values under an unsigned format."""

from dataclasses import replace
from functools import cache
from math import isfinite, prod

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.arithmetic.bits import divide
from blockscale.core.block import read_block
from blockscale.core.format import Format
from blockscale.core.reference import Ranges
from blockscale.core.scale import FloatScale, PowerOfTwo
from blockscale.core.scales import CodeScale
from blockscale.ops.quantize import fake_quantize


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


def told_of_clipped(outside: int, scales: int, fmt: Format) -> list[str]:
    """A note that as many of all scales are not stored as they were chosen; none where all are."""
    told = f"{outside} of {scales} scales are outside the range of {fmt.scale}"
    return [told] if outside else []


_SLAB = 1 << 17  # elements looked at at a time: of large weights, floats beside them take memory


def ends(values: Tensor) -> tuple[float, float] | None:
    """The smallest and the largest value [...]; None where one is NaN or infinite, or there is
    none."""
    if not values.numel() or values.dtype not in reference.FLOATS:
        return None
    low, high = (float(end) for end in torch.aminmax(values))
    return (low, high) if isfinite(low) and isfinite(high) else None


def not_finite(values: Tensor) -> int:
    """How many of these values are NaN or infinite."""
    if values.numel() and not any(values.stride()):  # one number in all places, as stand-ins have
        return 0 if values[(0,) * values.ndim].isfinite() else values.numel()
    if ends(values) is not None:  # nearly always, and several times as fast
        return 0
    return sum(int((~slab.isfinite()).sum()) for slab in _slabs(values))


def told_of_odd(weight: Tensor) -> str:
    """How many numbers of a weight are not finite, in words; empty if none are."""
    odd = not_finite(weight)
    return f"{odd} of {weight.numel()} weights are NaN or infinite" if odd else ""


def block_ranges(stored: Tensor, fmt: Format) -> Ranges:
    """The range of each block of a stored weight, of a large one a slab of rows at a time."""
    dim = _cut_dim(stored)
    rows = stored.ndim > 1 and not fmt.block.flat
    whole = not rows or fmt.block.scale_shape(tuple(stored.shape))[dim] != stored.shape[dim]
    slabs = [stored] if whole else _slabs(stored)
    parts = [reference.ranges(slab, fmt) for slab in slabs]
    return Ranges(*(torch.cat(each, dim if rows else 0) for each in zip(*parts, strict=True)))


def tops_of(stored: Tensor, fmt: Format, both: tuple[float, float] | None = None) -> Tensor:
    """The largest numerator for each outer scale of a stored weight, which it alone decides.

    both: its `ends`, where they are known
    """
    counts = fmt.stored(tuple(stored.shape))["outer"][1]
    pairs = zip(counts, stored.shape, strict=True)
    numbers = fmt.element.numbers(fmt.wide)
    statistic = "" if numbers is None or fmt.asym or fmt.offset is not None else numbers.statistic
    plain = statistic in ("magnitude", "high") and all(n in (1, size) for n, size in pairs)
    both = (both or ends(stored)) if plain and not fmt.block.flat else None
    if both is None:
        return reference.tops(block_ranges(stored, fmt), fmt)
    low = both[0] if statistic == "magnitude" else 0.0
    if prod(counts) == 1:
        return torch.full(counts, max(-low, both[1], 0.0), device=stored.device)
    over = [dim for dim, count in enumerate(counts) if count == 1]
    high = stored.amax(over, keepdim=True).clamp(min=0.0)
    if statistic == "magnitude":
        high = torch.maximum(-stored.amin(over, keepdim=True), high)
    return high.to(torch.float32)


def _cut_dim(values: Tensor) -> int:
    """The dimension whose rows are taken apart: of a stack of one matrix, that matrix's."""
    return 1 if values.ndim > 2 and len(values) == 1 else 0


def _slabs(values: Tensor) -> list[Tensor]:
    """The rows of a tensor, about _SLAB elements at a time; all of it where there are no rows."""
    if values.numel() <= _SLAB or values.ndim == 0:
        return [values]
    dim = _cut_dim(values)
    rows = max(1, _SLAB * values.shape[dim] // values.numel())
    return list(torch.split(values, rows, dim))


# Unsigned formats on values that have a sign: everything below 0 becomes 0, which is said.


def lost_signs(what: str, low: Tensor, fmt: Format) -> list[str]:
    """A note that `what` has values below 0 which its format cannot hold; none if all is well.

    low: the smallest value of each block, or of all [...].
    """
    if fmt.element.signed or not bool((low < 0).any()) or _reaches_below_zero(fmt):
        return []
    return [
        f"its {what} has values below 0, which {fmt} cannot hold: they become 0; give it a zero "
        f"point (asym) or a signed element"
    ]


@cache
def _reaches_below_zero(fmt: Format) -> bool:
    """Whether a value below 0 can stay one: asked of the format itself, whatever its parts."""
    whole = replace(fmt.deterministic, block=read_block("tensor"))
    return bool(fake_quantize(torch.tensor([[-1.0, 1.0]]), whole)[0, 0] < 0)
