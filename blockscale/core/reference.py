# SPDX-License-Identifier: BSD-3-Clause
"""The meaning of quantization. Every kernel must give these bits (docs/numerics.md).

All arithmetic is float32 whatever the input's dtype. Nothing here is fast; everything is exact.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.core.arithmetic import clusters, philox
from blockscale.core.arithmetic.precision import FLT_MAX, divide
from blockscale.core.block import Blocks
from blockscale.core.element import Element
from blockscale.core.elements.int_float import IntFloat
from blockscale.core.format import Format
from blockscale.core.rounding import Round, nearest_even, rounding
from blockscale.core.scale import FloatScale, PowerOfTwo
from blockscale.core.scales import CodeScale, TwoLevel

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


class QParams(NamedTuple):
    """What stands beside the codes of a tensor.

    Which of them a format has is said by `Format.parts`; the others are None.

    scale: as it is stored, of the tensor's rank (blockscale.core.block): floats, or uint8 for e8m0
        and for scales of two levels
    outer: the scales of a scale of two levels, floats
    zero_point: [scale's shape] for asym, int32 or floats
    offset: of each block, floats, or uint8 where they are codes
    offset_outer: the scales of such codes, floats
    scale_offset: what is added to the scales of a scale of two levels, floats
    book: float32 [2^bits], the values of a learned codebook by code
    """

    scale: Tensor
    outer: Tensor | None = None
    zero_point: Tensor | None = None
    offset: Tensor | None = None
    offset_outer: Tensor | None = None
    scale_offset: Tensor | None = None
    book: Tensor | None = None


class Ranges(NamedTuple):
    """What the scale of each block is chosen from; all three have the scale's shape.

    low: float32, the smallest finite value of the block, at most 0 unless the format has an offset
    high: float32, the largest, likewise at least 0; for binary and ternary the mean that becomes
        the scale, and low is its negative
    poisoned: bool, whether the block holds a NaN or an infinity and the scale can say so
    """

    low: Tensor
    high: Tensor
    poisoned: Tensor


def widen(x: Tensor) -> Tensor:
    """x [...] -> float32, exactly. Raises TypeError for dtypes that float32 cannot hold."""
    if x.dtype not in FLOATS:
        raise TypeError(
            f"expected float32, bfloat16 or float16, found {str(x.dtype).removeprefix('torch.')}: "
            f"convert it first, e.g. x.float()"
        )
    return x.to(torch.float32)


def choose_qparams(x: Tensor, fmt: Format) -> QParams:
    """x [...] -> the scale (and zero point) of each block (docs/numerics.md, section 3)."""
    if not fmt.element.learned:
        return settle(x, choice := ranges(x, fmt), qparams_from_range(*choice, fmt), fmt)
    qparams = _of_ranges(*ranges(x, fmt), fmt)
    book = clusters.learn(in_steps(x, qparams, fmt), 2**fmt.bits)
    return qparams._replace(book=book.to(x.device))


def ranges(x: Tensor, fmt: Format) -> Ranges:
    """x [...] -> what the scale of each block is chosen from (docs/numerics.md, 3.1 and 3.2).

    Ranges merge: those of a whole are the elementwise smallest low and largest high of its parts'.
    Not so for binary and ternary, whose high is a mean.
    """
    blocks = Blocks(widen(x), fmt.block)
    return with_means(extremes(blocks, fmt), blocks, fmt)


def extremes(blocks: Blocks, fmt: Format) -> Ranges:
    """The smallest and largest finite value of each block, also where its scale is a mean (3.1)."""
    low, high = blocks.range(bare=fmt.offset is not None)
    poisoned = blocks.poisoned() if fmt.scale.poisons else torch.zeros_like(low, dtype=torch.bool)
    return Ranges(low, high, poisoned)


def with_means(ranges: Ranges, blocks: Blocks, fmt: Format) -> Ranges:
    """The same, but for elements whose scale is a mean, that mean is the range's end (3.2)."""
    mean = fmt.element.magnitude(blocks)
    return ranges if mean is None else Ranges(-mean, mean, ranges.poisoned)


def qparams_from_range(
    low: Tensor, high: Tensor, poisoned: Tensor, fmt: Format, outer: Tensor | None = None
) -> QParams:
    """Each block's range [scale's shape], as in `Ranges` -> its scale and what goes with it.

    poisoned: bool [scale's shape], blocks with a NaN or an infinity. Observers call this too.
        Of blocks that compare two scales it is the one for 6: `settle` sees numbers.
    outer: the outer scale of two levels where it is given, such as that of layers which share one;
        else the ranges choose it.
    Raises ValueError for a format whose scales, offsets or values are not chosen from ranges.
    """
    if fmt.element.learned:
        raise ValueError(
            f"{fmt}: {fmt.element.name} is learned from a whole tensor, and a range is not "
            "enough: quantize the tensor"
        )
    return _of_ranges(low, high, poisoned, fmt, outer)


def _of_ranges(
    low: Tensor, high: Tensor, poisoned: Tensor, fmt: Format, outer: Tensor | None = None
) -> QParams:
    if fmt.unchosen:
        raise ValueError(
            f"{fmt}: {fmt.unchosen}: pass the scale that a file or another library has"
        )
    if fmt.offset is not None and fmt.offset.inner and not fmt.offset.inner.element.signed:
        low = low.clamp(max=0.0)  # such offsets are at most 0
    scale, outer = _store(low, high, fmt, poisoned, outer)
    return with_zero(low, QParams(scale, outer), fmt)


Errors = Callable[[Tensor, QParams, Format], Tensor]


def block_errors(x: Tensor, qparams: QParams, fmt: Format) -> Tensor:
    """x [...] float32 and its scale -> what a round trip loses of each block, [scale's shape]
    float64: the sum of the squares in the order of docs/numerics.md, 3.5."""
    return squared_errors(x, fake_quantize(x, qparams, fmt), fmt)


def squared_errors(x: Tensor, values: Tensor, fmt: Format) -> Tensor:
    """The same from the values [...] that a round trip leaves of x."""
    error = values.double() - x.double()
    return Blocks(error * error, fmt.block).sum()


def settle(
    x: Tensor, ranges: Ranges, qparams: QParams, fmt: Format, errors: Errors = block_errors
) -> QParams:
    """What x's ranges chose -> the same where they decide; of blocks that compare two scales, or
    the two grids that the signs of one scale mean, the better one (docs/numerics.md, 3.5).

    errors: as `block_errors`, to the bit
    """
    if not fmt.compares:
        return qparams
    plain, wide = fmt.plain.deterministic, widen(x)
    other = qparams._replace(scale=_other_scale(ranges, qparams, fmt))
    better = errors(wide, other, plain) < errors(wide, qparams, plain)
    return qparams._replace(scale=torch.where(better, other.scale, qparams.scale))


def _other_scale(ranges: Ranges, qparams: QParams, fmt: Format) -> Tensor:
    """The scale that a block of a format which compares has besides that of its range."""
    if fmt.element.by_sign:
        return negated(qparams.scale, fmt)
    assert isinstance(fmt.scale, TwoLevel)
    a = numerator(ranges.low, ranges.high, fmt)
    return fmt.scale.wider(a, fmt.levels, ranges.poisoned, qparams.outer)


def negated(scale: Tensor, fmt: Format) -> Tensor:
    """Stored scales with a sign -> those of the other sign, as stored."""
    return fmt.scale.negated(scale) if isinstance(fmt.scale, TwoLevel) else -scale


def with_zero(low: Tensor, qparams: QParams, fmt: Format) -> QParams:
    """Each block's smallest value and its scale -> the same with a zero point or an offset."""
    if fmt.asym:
        step = step_of(qparams, fmt)
        return qparams._replace(zero_point=choose_zero_point(low, step, fmt))
    if fmt.offset is not None:
        offset, outer = fmt.offset.store(choose_offset(low, step_of(qparams, fmt), fmt))
        return qparams._replace(offset=offset, offset_outer=outer)
    return qparams


def numerator(low: Tensor, high: Tensor, fmt: Format) -> Tensor:
    """The range of each block -> its numerator a [scale's shape]: what a scale is rounded from.

    The step times the element's largest value is to reach it (docs/numerics.md, 3.1).
    """
    if fmt.asym or fmt.offset is not None:
        return (high - low).clamp(max=FLT_MAX)
    return torch.maximum(-low, high) if fmt.element.signed else high


def _store(
    low: Tensor, high: Tensor, fmt: Format, poisoned: Tensor, outer: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    a, scale = numerator(low, high, fmt), fmt.scale
    if isinstance(scale, FloatScale):
        raw = quotient(low, high, fmt)
        return (scale.store_signed if fmt.span == "signed" else scale.store)(raw), None
    if isinstance(scale, CodeScale):
        return scale.poison(scale.store(quotient(low, high, fmt)), poisoned), None
    if isinstance(scale, PowerOfTwo):
        stored = scale.store(a, fmt.levels, fmt.fraction_bits)
        return (torch.where(poisoned, 255, stored) if scale.byte else stored), None
    codes, outer = scale.store(a, fmt.levels, poisoned, outer)
    return scale.poison(codes, poisoned), outer


def tops(ranges: Ranges, fmt: Format) -> Tensor:
    """The ranges of blocks -> the largest numerator for each outer scale of a format of two levels.

    It alone decides the outer scale, so the largest of several tensors' decides one for all.
    """
    assert isinstance(fmt.scale, TwoLevel)
    return fmt.scale.tops(numerator(ranges.low, ranges.high, fmt), ranges.poisoned)


def outer_of(tops: Tensor, fmt: Format) -> Tensor:
    """What `tops` gave -> the outer scale as it is stored."""
    assert isinstance(fmt.scale, TwoLevel)
    return fmt.scale.outer_of(tops, fmt.levels)


def quotient(low: Tensor, high: Tensor, fmt: Format) -> Tensor:
    """The range of each block -> a / L [scale's shape], what a float scale rounds (3.3)."""
    lowest, highest = fmt.element.limits(fmt.wide)
    if fmt.span == "signed":
        return divide(torch.where(high >= -low, high, low), lowest)
    if fmt.two_sided:
        return torch.maximum(divide(high, highest), divide(low, lowest))
    return divide(numerator(low, high, fmt), fmt.levels.value)


def step_of(qparams: QParams, fmt: Format) -> Tensor:
    """The float32 step of each block [scale's shape] (docs/numerics.md, 1.3)."""
    scale = fmt.scale
    if isinstance(scale, PowerOfTwo):
        return scale.step(qparams.scale, fmt.fraction_bits)
    if isinstance(scale, TwoLevel):
        assert qparams.outer is not None
        inner, offset = scale.inner, qparams.scale_offset
        if inner.offset is not None and offset is not None:
            value = inner.offset.value(offset, None)
            offset = (inner.offset.block or inner.block).expand(value, qparams.scale.shape)
        return scale.step(qparams.scale, qparams.outer, offset)
    return scale.step(qparams.scale)


def in_steps(x: Tensor, qparams: QParams, fmt: Format) -> Tensor:
    """x [...] -> y [...] float32: how many steps of its block each element is (section 4)."""
    x = widen(x)
    offset = expand_offset(qparams.offset, qparams.offset_outer, fmt, x.shape)
    if offset is not None:
        x = x - offset
    if not fmt.recip:
        return x / fmt.block.expand(step_of(qparams, fmt), x.shape)
    scale = fmt.scale
    if isinstance(scale, TwoLevel) and scale.inner.offset is None and not scale.reciprocal:
        assert qparams.outer is not None
        outer = scale.inner.block.expand(qparams.outer.to(torch.float32), qparams.scale.shape)
        inverse = outer.reciprocal() / scale.values(qparams.scale)
    else:
        inverse = step_of(qparams, fmt).reciprocal()
    return x * fmt.block.expand(inverse.clamp(-FLT_MAX, FLT_MAX), x.shape)


def _points(y: Tensor, qparams: QParams, fmt: Format) -> tuple[Tensor, Tensor | None]:
    """y of section 4 -> what `Element.encode` takes: y, and an integer zero point."""
    zero = expand_zero_point(qparams.zero_point, fmt, y.shape)
    if fmt.zero is None or zero is None:
        return y, zero
    return torch.where(y.isnan(), 0.0, y) + zero, None  # added before rounding: it is no integer


def element_for(qparams: QParams, fmt: Format, shape: Sequence[int]) -> Element:
    """The element of a tensor of `shape`: with its table, or with the grids of its blocks."""
    if isinstance(fmt.element, IntFloat):
        steps = step_of(qparams, fmt)
        return fmt.element.bound(fmt.block.expand(steps, shape).signbit())
    return fmt.element.with_book(qparams.book)


def quantize(x: Tensor, qparams: QParams, fmt: Format, seed: Tensor | None = None) -> Tensor:
    """x [...] -> codes [...] of the element's code_dtype (docs/numerics.md, section 4).

    seed: int64 [] or [2] (seed, index of the first element), for stochastic rounding.
    """
    y, zero = _points(in_steps(x, qparams, fmt), qparams, fmt)

    def uniform() -> Tensor:
        if seed is None:
            raise ValueError(f"{fmt}: stochastic rounding needs a seed")
        return philox.uniform(x.shape, seed, x.device)

    mode = rounding(fmt.rounding, uniform)
    return element_for(qparams, fmt, x.shape).encode(y, mode, zero, fmt.wide)


def dequantize(codes: Tensor, qparams: QParams, fmt: Format, dtype: torch.dtype) -> Tensor:
    """codes [...] -> values [...] of `dtype` (docs/numerics.md, section 5)."""
    values = element_for(qparams, fmt, codes.shape).decode(codes)
    zero = expand_zero_point(qparams.zero_point, fmt, codes.shape)
    if zero is not None:
        values = values - zero
    values = values * fmt.block.expand(step_of(qparams, fmt), codes.shape)
    offset = expand_offset(qparams.offset, qparams.offset_outer, fmt, codes.shape)
    return (values if offset is None else values + offset).to(dtype)


def fake_quantize(x: Tensor, qparams: QParams, fmt: Format, seed: Tensor | None = None) -> Tensor:
    """x [...] -> what is left of it after a round trip, in x's dtype."""
    return dequantize(quantize(x, qparams, fmt, seed), qparams, fmt, x.dtype)


def in_range(x: Tensor, qparams: QParams, fmt: Format) -> Tensor:
    """x [...] -> bool [...]: where quantizing does not saturate, so that a gradient passes (5)."""
    mode: Round = rounding(
        fmt.rounding if fmt.rounding != "stochastic" else "nearest_even", x.new_empty
    )
    y = in_steps(x, qparams, fmt)
    points, zero = _points(y, qparams, fmt)
    inside = element_for(qparams, fmt, x.shape).in_range(points, mode, zero, fmt.wide)
    return inside & ~y.isnan()  # which a zero point that is no integer takes for 0


# Zero points, codes that stand for 0 under `asym`, and offsets (numerics.md, 3.6, 3.8).


def choose_zero_point(low: Tensor, step: Tensor, fmt: Format) -> Tensor:
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


def expand_zero_point(zero_point: Tensor | None, fmt: Format, shape: torch.Size) -> Tensor | None:
    """The zero points of blocks -> float32 that broadcasts to a tensor of `shape`; None stays."""
    if zero_point is None:
        return None
    return fmt.block.expand(zero_point.to(torch.float32), shape)


def choose_offset(low: Tensor, step: Tensor, fmt: Format) -> Tensor:
    """The offset of each block, float32, of a format that has one: low gets the lowest value.

    low, step: as in `choose_zero_point`.
    """
    lowest = fmt.element.limits(fmt.wide)[0]
    result = low - step * lowest + 0.0  # of 0 and -0 neither is the smaller: b is never -0
    return torch.where(result.isnan(), 0.0, result).clamp(-FLT_MAX, FLT_MAX)


def expand_offset(
    stored: Tensor | None, outer: Tensor | None, fmt: Format, shape: torch.Size
) -> Tensor | None:
    """The offsets of blocks as stored -> float32 that broadcasts to a tensor of `shape`."""
    if stored is None or fmt.offset is None:
        return None
    return (fmt.offset.block or fmt.block).expand(fmt.offset.value(stored, outer), shape)
