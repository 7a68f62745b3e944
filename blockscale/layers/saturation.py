# SPDX-License-Identifier: BSD-3-Clause
"""What a format cannot hold: scales that cannot be stored as they were chosen (docs/numerics.md,
3.3 to 3.5), and the signs of values under an unsigned format; and a weight's codes by the fused
kernel, off whose result it is read."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from math import isfinite, prod
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.arithmetic.precision import divide, subnormals_kept
from blockscale.core.block import WHOLE, read_block
from blockscale.core.format import Format
from blockscale.core.joined_weights import standing_rows
from blockscale.core.reference import QParams, Ranges
from blockscale.core.scale import FloatScale, PowerOfTwo
from blockscale.core.scales import CodeScale, TwoLevel
from blockscale.kernels.registry import find
from blockscale.ops import primitives
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
        underflows = (divide(a, fmt.levels.value) == 0) & (scale.rule == "nearest")
        return (a > 0) & (underflows | (power > 127) | (power < (-127 if scale.byte else -126)))
    ratio, _ = scale.ratio(a, fmt.levels, torch.zeros_like(a, dtype=torch.bool), outer)
    return (a > 0) & (ratio < scale.inner.element.smallest_normal)


def clipping_note(outside: int, scales: int, fmt: Format) -> list[str]:
    """A note that as many of all scales are not stored as they were chosen; none where all are."""
    if not outside:
        return []
    return [f"{outside} of {scales} scales are outside the range of {fmt.scale}"]


# Elements looked at at a time: beside a large weight, its floats take memory, and the reference up
# to 150 bytes for each element.
_SLAB = 1 << 17


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


def odd_values_note(weight: Tensor) -> str:
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


# A weight's codes and scales by the fused kernel, and what a user should know of them.
#
# One pass over memory chooses scales and codes. What the ledger says besides is read off its
# result: a scale that cannot be stored as it was chosen is stored as the first or the last one that
# there is, so only blocks whose stored scale is one of these are looked at by the reference.


def has_kernel(fmt: Format, x: Tensor | None = None) -> bool:
    """Whether a fused kernel chooses scales and codes, of x where one is named."""
    if fmt.unchosen or fmt.element.learned:
        return False
    x = torch.empty(1, 1) if x is None else x
    arguments = (x, fmt.spelling, None)
    kernel = find("choose_quantize", (fmt.spelling,), x.device.type, arguments, composite=True)
    return kernel is not None


class CodesOfKernel(NamedTuple):
    """Packed codes, and what stands beside them."""

    packed: Tensor
    qparams: QParams


def by_kernel(
    x: Tensor, fmt: Format, seed: Tensor | None, top: Tensor | None
) -> CodesOfKernel | None:
    """x [...] -> its codes and scales by the fused kernel; None where there is none for this.

    top: the largest numerator of all that share x's outer scale, [1, outer scales in a row], which
        rows that stand for the others bring to the kernel; None where x chooses its own
    """
    if not has_kernel(fmt, x) or not x.numel():
        return None
    if top is None:
        packed, *parts = primitives.choose_quantize(x, fmt.spelling, seed)
        return CodesOfKernel(packed, primitives.from_list(parts, fmt))
    rows = _rows_for(x, fmt, top)
    if rows is None:
        return None
    packed, *parts = primitives.choose_quantize(torch.cat([x, rows]), fmt.spelling, seed)
    qparams = primitives.from_list(parts, fmt)
    count = fmt.block.scale_shape(tuple(x.shape))[0]
    return CodesOfKernel(packed[: len(x)], qparams._replace(scale=qparams.scale[:count]))


def _rows_for(x: Tensor, fmt: Format, top: Tensor) -> Tensor | None:
    """Rows in x's dtype which hold `top`; None where rows below x cannot bring it to a kernel."""
    if x.ndim != 2 or len(top) != 1 or fmt.asym or fmt.offset is not None:
        return None  # a range of two ends may be a number that x's dtype does not have
    high = fmt.block.sizes_for(2)[0]
    if high == WHOLE or len(x) % high or "scale_offset" in fmt.parts:
        return None
    if fmt.stored((len(x) + high, x.shape[-1]))["outer"][1] != tuple(top.shape):
        return None
    rows = standing_rows(top, fmt, x.shape[-1])
    own = rows.to(x.dtype)
    return own if torch.equal(own.to(torch.float32), rows) else None


# What the ledger says of scales.


def clipped(x: Tensor, qparams: QParams, fmt: Format) -> int:
    """How many of the scales that were chosen for x lie outside of what can be stored."""
    if _inside(qparams.scale, fmt):
        return 0
    total = 0
    with subnormals_kept():
        for own, scale, outer in _pieces(x, qparams, fmt):
            if not _inside(scale, fmt) and bool(own.any()):  # zeros lose nothing
                result = reference.ranges(own, fmt)
                total += int(saturates(result.low, result.high, fmt, outer).sum())
    return total


def _pieces(
    x: Tensor, qparams: QParams, fmt: Format
) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """x a few rows of blocks at a time, with the scales of these and what they are codes under."""
    scale, outer = qparams.scale, qparams.outer
    dim = 1 if x.ndim > 2 and len(x) == 1 else 0
    size = WHOLE if fmt.block.flat or not x.ndim else fmt.block.sizes_for(x.ndim)[dim]
    shared = 1 if outer is None or not outer.ndim else outer.shape[dim]
    if size == WHOLE or shared not in (1, scale.shape[dim]):
        yield x, scale, outer
        return
    count = max(_SLAB * x.shape[dim] // x.numel() // size, 1)
    for start in range(0, scale.shape[dim], count):
        some = min(count, scale.shape[dim] - start)
        rows = min(some * size, x.shape[dim] - start * size)
        own = outer if outer is None or shared == 1 else outer.narrow(dim, start, some)
        yield x.narrow(dim, start * size, rows), scale.narrow(dim, start, some), own


def _inside(scale: Tensor, fmt: Format) -> bool:
    """Whether no stored scale is one that a scale out of range would be stored as."""
    low, high = _bounds(fmt)
    least, most = (float(end) for end in torch.aminmax(scale.abs() if scale.ndim else scale))
    return low < least and most < high


@cache
def _bounds(fmt: Format) -> tuple[float, float]:
    """Stored scales between these were chosen as they are stored: numbers, or codes in a byte.

    Codes of scales ascend with what they mean, those of NaN last.
    """
    scale = fmt.scale
    if isinstance(scale, FloatScale):
        return scale.low, scale.high
    if isinstance(scale, PowerOfTwo):
        return (0.0, 254.0) if scale.byte else (2.0**-126, 2.0**127)
    if isinstance(scale, TwoLevel):
        element = scale.inner.element  # the rule four_six stores up to 1.5 times as much
        low = element.smallest_normal * (1.5 if scale.compares else 1.0)
        ends = torch.tensor([low, torch.inf])
        high = 256.0 if element.nan_code is None else float(element.nan_code)
        return float(scale.encode(ends[:1])), high
    low_code, high_code = scale.store(torch.tensor([0.0, torch.inf])).tolist()
    return float(low_code), float(high_code)
