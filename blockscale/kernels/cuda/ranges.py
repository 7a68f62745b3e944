"""What blocks' scales are chosen from: extremes and means (docs/numerics.md, 3.1 and 3.2).

`x` are numbers of one dtype, or pairs of those of 16 bits (lanes.py); `tile` counts the same.
"""

import triton
import triton.language as tl

from blockscale.kernels.cuda.element import magnitude
from blockscale.kernels.cuda.lanes import SIGNS, apart, largest_pattern, widened
from blockscale.kernels.cuda.numerics import EXPONENT, bits_of, float_of, pow2, widen
from blockscale.kernels.cuda.scale import (
    averages,
    choose_step,
    narrow_scale,
    numerator,
    step_of,
    zero_point,
)
from blockscale.kernels.cuda.tile import locate, reduced, spread

SIGN: tl.constexpr = tl.constexpr(-0x80000000)
ONE: tl.constexpr = tl.constexpr(0x00800000)  # of an exponent


@triton.jit
def turned(bits, side: tl.constexpr, sign: tl.constexpr):
    """Bits of numbers -> of their magnitudes ("both"), of them ("above") or negated ("below")."""
    if side == "both":
        bits = bits & (sign ^ -1)
    elif side == "below":
        bits = bits ^ sign
    return bits


@triton.jit
def peak(x, side: tl.constexpr, dtype: tl.constexpr, tile: tl.constexpr):
    """The bits of each unit's largest number on a side of 0, at least 0; infinity and NaN are
    larger than all others."""
    if x.dtype == tl.int32:
        found = widened(tl.maximum(largest_pattern(turned(x, side, SIGNS), tile), 0), dtype)
    else:
        found = tl.maximum(reduced(turned(bits_of(widen(x)), side, SIGN), "largest", tile), 0)
    return found


@triton.jit
def extremes(x, dtype: tl.constexpr, spec: tl.constexpr, tile: tl.constexpr):
    """A tile -> of each unit the bits of the largest number, of the smallest negated, both at
    least 0, and of the largest magnitude: at least infinity's if something is not finite, and
    then the first two may be as well."""
    if spec.statistic == "range":
        high, low = peak(x, "above", dtype, tile), peak(x, "below", dtype, tile)
        top = tl.maximum(high, low)
    else:
        top = peak(x, "both", dtype, tile)
        high, low = top, top
        if spec.statistic == "high":
            high = peak(x, "above", dtype, tile)
    return high, low, top


@triton.jit
def finite_peak(x, side: tl.constexpr, dtype: tl.constexpr, tile: tl.constexpr):
    """As `peak`, of what is finite."""
    if x.dtype == tl.int32:
        first, second = apart(x, dtype)
        first, second = turned(bits_of(first), side, SIGN), turned(bits_of(second), side, SIGN)
        if tile.kind == "column":
            first = reduced(first + ONE, "largest", tile)
            second = reduced(second + ONE, "largest", tile)
            found = tl.reshape(tl.join(first, second), [2 * tile.columns])
        else:
            found = reduced(tl.maximum(first + ONE, second + ONE), "largest", tile)
    else:
        bits = turned(bits_of(widen(x)), side, SIGN)
        found = reduced(bits + ONE, "largest", tile)
    return tl.maximum(found, ONE) - ONE  # it wraps around to negative from infinity on


@triton.jit
def finite_extremes(x, dtype: tl.constexpr, spec: tl.constexpr, tile: tl.constexpr):
    """The first two of `extremes`, of what is finite."""
    if spec.statistic == "range" or spec.statistic == "high":
        high = finite_peak(x, "above", dtype, tile)
        low = finite_peak(x, "below", dtype, tile)
    else:
        high = finite_peak(x, "both", dtype, tile)
        low = high
    return high, low


@triton.jit
def far_from_zero(x, top, dtype: tl.constexpr, spec: tl.constexpr):
    """Whether no quotient but that of 0 is 0, or has a remainder that is: their steps are at most
    1, or nothing but 0 is below 2^-60. top: the bits of each unit's largest magnitude"""
    highest = tl.max(top)
    far = highest <= spec.most
    if far == 0:
        if x.dtype == tl.int32:
            first, second = apart(x, dtype)
            least = tl.minimum(least_magnitude(first), least_magnitude(second))
        else:
            least = least_magnitude(widen(x))
        far = (least >= 0x21800000) & (highest < 0x53800000)  # 2^-60, 2^40
    return far


@triton.jit
def least_magnitude(x):
    """The bits of the smallest magnitude but 0."""
    bits = magnitude(bits_of(x))
    return tl.min(tl.where(bits == 0, EXPONENT, bits))


@triton.jit
def means(
    x, found, mask, finite: tl.constexpr, dtype: tl.constexpr, spec: tl.constexpr,
    tile: tl.constexpr,
):  # fmt: skip
    """A tile -> the mean magnitude of each unit, whose sum is one of integers (3.2).

    found: its `extremes`; finite: everything is, and its shift is a float32's exponent
    """
    paired: tl.constexpr = x.dtype == tl.int32
    if paired:
        one, two = apart(x, dtype)
        one, two = tl.abs(one), tl.abs(two)
    else:
        one = tl.abs(widen(x))
        two = one
    count = mask.to(tl.int32)
    count = count + count if paired else count
    top = found[2]
    if not finite:
        good, good_2 = mask & (bits_of(one) < EXPONENT), mask & (bits_of(two) < EXPONENT)
        one, two = tl.where(good, one, 0.0), tl.where(good_2, two, 0.0)
        count = good.to(tl.int32) + good_2.to(tl.int32) if paired else good.to(tl.int32)
        top = reduced(bits_of(tl.maximum(one, two)), "largest", tile)
    if finite and tile.kind == "row" and tile.even:
        count = tl.zeros_like(top) + (2 * tile.columns if paired else tile.columns)
    else:
        count = reduced(count, "total", tile)
    power = tl.maximum(top >> 23, 1) - 127
    whole, whole_2 = counted(one, 30 - power, finite, tile), counted(two, 30 - power, finite, tile)
    mean = mean_of(reduced(whole + whole_2 if paired else whole, "total", tile), count, power)
    if spec.statistic == "mean_above":  # their number above the 46 bits of their sum
        least = spread(mean * 0.699999988079071044921875, tile)
        whole = tl.where(one > least, whole + (1 << 46), 0)
        whole_2 = tl.where(two > least, whole_2 + (1 << 46), 0)
        both = reduced(whole + whole_2 if paired else whole, "total", tile)
        mean = mean_of(both & ((1 << 46) - 1), both >> 46, power)
    return mean


@triton.jit
def counted(size, shift, finite: tl.constexpr, tile: tl.constexpr):
    """Numbers times a power of two of each unit, without their fractions: int64."""
    if finite:
        size = size * spread(pow2(shift), tile)
    else:
        half = shift >> 1  # two factors: 2^156 is not a float32
        size = size * spread(pow2(half), tile) * spread(pow2(shift - half), tile)
    return size.to(tl.int32).to(tl.int64)


@triton.jit
def mean_of(sums, count, power):
    """Sums of integers over their number, times 2^(power - 30)."""
    quotient = tl.div_rn(sums.to(tl.float32), tl.maximum(count, 1).to(tl.float32))
    return quotient * 9.313225746154785e-10 * pow2(power)


@triton.jit
def ranges(
    x, found, mask, finite: tl.constexpr, dtype: tl.constexpr, spec: tl.constexpr,
    tile: tl.constexpr,
):  # fmt: skip
    """A tile -> (low, high) of each unit, which is a whole block. found: its `extremes`; finite:
    everything is"""
    if averages(spec):
        high = means(x, found, mask, finite, dtype, spec, tile)
        low = 0.0 - high
    else:
        up, down, _ = found
        if not finite:
            up, down = finite_extremes(x, dtype, spec, tile)
        high, low = float_of(up), 0.0 - float_of(down)
    return low, high


@triton.jit
def largest_numerator(
    x_at, work, numbers,
    spec: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """The largest numerator of blocks that are not poisoned -> work int32 [1], its bits."""
    start, j, mask, _, present = locate(tile, numbers, 1)
    x = tl.load(x_at + start[:, None] + j[None, :], mask=mask, other=0.0)
    found = extremes(x, x.dtype, spec, tile)
    finite: tl.constexpr = spec.poisons and not averages(spec)  # others are left out
    low, high = ranges(x, found, mask, finite, x.dtype, spec, tile)
    if spec.poisons:
        present = present & (found[2] < EXPONENT)
    a = tl.where(present, numerator(low, high, spec), 0.0)
    tl.atomic_max(work, tl.max(bits_of(a)), sem="relaxed")


@triton.jit
def merge_extremes(
    x_at, work, count, numbers,
    spec: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """Extremes of parts of blocks, merged in work int32 [3, count], which starts as zeros.

    Its rows: the bits of the largest number, of the smallest negated, of the largest magnitude.
    """
    start, j, mask, index, present = locate(tile, numbers, 1)
    x = tl.load(x_at + start[:, None] + j[None, :], mask=mask, other=0.0)
    high, low, top = extremes(x, x.dtype, spec, tile)
    if tl.max(top) >= EXPONENT:
        high, low = finite_extremes(x, x.dtype, spec, tile)
    at = work + index
    tl.atomic_max(at, high, mask=present, sem="relaxed")
    if spec.statistic == "range":
        tl.atomic_max(at + count, low, mask=present, sem="relaxed")
    if spec.poisons:
        tl.atomic_max(at + 2 * count, top, mask=present, sem="relaxed")


@triton.jit
def finish(work, scale, zero, count, spec: tl.constexpr, columns: tl.constexpr):
    """What `merge_extremes` left -> stored scales and zero points."""
    index = tl.program_id(0).to(tl.int64) * columns + tl.arange(0, columns)
    present = index < count
    high = float_of(tl.load(work + index, mask=present, other=0))
    low = 0.0 - float_of(tl.load(work + count + index, mask=present, other=0))
    poisoned = high < 0.0
    if spec.poisons:
        poisoned = tl.load(work + 2 * count + index, mask=present, other=0) >= EXPONENT
    stored = choose_step(low, high, poisoned, 1.0, spec)
    tl.store(scale + index, narrow_scale(stored, scale.dtype.element_ty), mask=present)
    if spec.asym:
        offset = zero_point(low, step_of(stored, 1.0, spec), spec)
        tl.store(zero + index, offset, mask=present)
