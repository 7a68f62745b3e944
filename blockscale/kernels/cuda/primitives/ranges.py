"""What blocks' scales are chosen from: extremes and means (docs/numerics.md, 3.1 and 3.2).

`x` are numbers of one dtype, or pairs of those of 16 bits (lanes.py); `tile` counts the same.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from blockscale.kernels.cuda.device.division import averages
from blockscale.kernels.cuda.device.element import magnitude
from blockscale.kernels.cuda.device.lanes import (
    MAGNITUDES,
    SIGNS,
    apart,
    greater,
    joins,
    largest_pattern,
    read,
    rounded_down,
    spread_pairs,
    widened,
)
from blockscale.kernels.cuda.device.numerics import (
    EXPONENT,
    INTERPRETED,
    bits_of,
    float_of,
    pow2,
    widen,
)
from blockscale.kernels.cuda.device.scale import (
    choose_step,
    narrow_scale,
    numerator,
    step_of,
    zero_point,
)
from blockscale.kernels.cuda.device.tile import reduced, spread

SIGN: tl.constexpr = tl.constexpr(-0x80000000)
ONE: tl.constexpr = tl.constexpr(0x00800000)  # of an exponent
HIGH: tl.constexpr = tl.constexpr(0x52800000)  # the bits of 2^38
LOW: tl.constexpr = tl.constexpr(0x4B000000)  # the bits of 2^23


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
    size = x & MAGNITUDES if paired else tl.abs(widen(x))
    top = found[2]
    full: tl.constexpr = finite and tile.kind == "row" and tile.even
    if full:
        count = tl.zeros_like(top) + (2 * tile.columns if paired else tile.columns)
    elif finite:
        count = reduced(mask.to(tl.int32), "total", tile) * (2 if paired else 1)
    else:
        size, good = without_infinity(size, mask, dtype)
        count = counted(good, dtype, tile)
        top = peak(size, "both", dtype, tile)
    power = tl.maximum(top >> 23, 1) - 127
    mean = mean_of(total(size, 30 - power, finite, dtype, tile), count, power, full)
    if spec.statistic == "mean_above":
        least = mean * 0.699999988079071044921875
        if paired:
            first, second = spread_pairs(rounded_down(least, dtype), tile)
            limit = tl.broadcast_to(first | (second << 16), size.shape)
            kept = greater(size, limit, dtype)
            size, count = size & kept, counted(kept, dtype, tile)
        else:
            kept = tl.where(size > spread(least, tile), 1.0, 0.0)
            size, count = size * kept, reduced(kept, "total", tile)
        if coarse(dtype, finite, tile):
            sums = coarse_total(size, 30 - power, tile)
        else:
            sums = total(size, 30 - power, finite, dtype, tile)
        mean = mean_of(sums, count, power, False)
    return mean


@triton.jit
def without_infinity(size, mask, dtype: tl.constexpr):
    """Magnitudes -> what is finite of them, and ones in the bits of what is and exists."""
    if size.dtype == tl.int32:
        one, two = apart(size, dtype)
        good = tl.where(mask & (bits_of(one) < EXPONENT), 0xFFFF, 0)
        good = good | tl.where(mask & (bits_of(two) < EXPONENT), -0x10000, 0)
        size = size & good
    else:
        good = tl.where(mask & (bits_of(size) < EXPONENT), -1, 0)
        size = float_of(bits_of(size) & good)
    return size, good


@triton.jit
def counted(ones, dtype: tl.constexpr, tile: tl.constexpr):
    """Ones in the bits of some numbers -> how many numbers of each unit, up to 2^15 of pairs."""
    found = 0 - reduced(ones, "total", tile)
    if dtype.primitive_bitwidth == 16 and tile.pairs:  # 2^16 seconds less 2^16 - 1 firsts
        first = found & 0xFFFF
        found = first + ((found - first) >> 16) + first
    return found


@triton.jit
def total(size, shift, finite: tl.constexpr, dtype: tl.constexpr, tile: tl.constexpr):
    """Magnitudes -> of each unit the sum, int64, of all times 2^shift without their fractions,
    which are below 2^31: up to 2^15 of them."""
    factor = pow2(shift)
    if not finite:  # two factors: 2^156 is not a float32
        factor = pow2(shift >> 1)
    other = pow2(shift - (shift >> 1))
    paired: tl.constexpr = size.dtype == tl.int32
    padded: tl.constexpr = tile.rows * tile.columns * (2 if paired else 1) // units(tile)
    if paired:
        one, two = apart(size, dtype)
        high, low = limbs(one, factor, other, finite, tile)
        high_2, low_2 = limbs(two, factor, other, finite, tile)
        high, low = high + high_2, low + low_2
    else:
        high, low = limbs(size, factor, other, finite, tile)
    high, low = both_totals(high, low, tile)
    high, low = high - wrapped(padded * HIGH), low - wrapped(padded * LOW)
    return (high.to(tl.int64) << 15) + low


@triton.jit
def both_totals(high, low, tile: tl.constexpr):
    """Of each unit the totals of two int32; where a unit is a row, threads meet once for both."""
    if tile.kind == "row":
        high, low = tl.split(tl.sum(tl.join(high, low), 1))
    else:
        high, low = reduced(high, "total", tile), reduced(low, "total", tile)
    return high, low


@triton.constexpr_function
def coarse(dtype, finite, tile):
    """Whether what is above 0.7 of a mean consists of multiples of 2^-22 of the largest number's
    binade: in units of up to 2^14 the mean is at least 2^-14 of it, and a bfloat16 has 8 bits."""
    paired = dtype == tl.bfloat16 and tile.pairs and tile.kind == "row"
    return paired and finite and 4 <= tile.columns <= 2**13


@triton.jit
def coarse_total(size, shift, tile: tl.constexpr):
    """As `total`, of pairs that are `coarse`: one sum rounds each to multiples of 2^8."""
    factor = spread(pow2(shift), tile)
    one, two = apart(size, tl.bfloat16)
    if INTERPRETED:
        whole = ((one * factor).to(tl.int32) >> 8) + ((two * factor).to(tl.int32) >> 8)
    else:
        factor = tl.broadcast_to(factor, size.shape)
        start = tl.zeros_like(one) + 2147483648.0
        whole = bits_of(tl.fma(one, factor, start)) + bits_of(tl.fma(two, factor, start))
        whole = whole - wrapped(2 * 0x4F000000)  # the bits of 2^31
    whole = tl.sum(tl.reshape(whole, [tile.rows, tile.columns // 4, 4]), 2)  # below 2^27
    high, low = both_totals(whole >> 13, whole & 0x1FFF, tile)
    return (high.to(tl.int64) << 21) + (low.to(tl.int64) << 8)


@triton.constexpr_function
def units(tile):
    """How many of them a tile has."""
    return {"row": tile.rows, "column": tile.columns}.get(tile.kind, tile.columns // tile.part)


@triton.constexpr_function
def wrapped(number):
    """Its low 32 bits as an int32."""
    return (int(number) + 2**31) % 2**32 - 2**31


@triton.jit
def limbs(size, factor, other, finite: tl.constexpr, tile: tl.constexpr):
    """Integers below 2^31 of `total` -> HIGH + their bits from 15 on, LOW + those below: int32.

    Sums rounded down: beside 2^38 neighbours are 2^15 apart, and from 2^23 on 1. What libdevice's
    function flushes, subnormals, is less than 1.
    """
    factor = spread(factor, tile)
    if not finite:
        size, factor = size * factor, spread(other, tile)
    if INTERPRETED:
        whole = (size * factor).to(tl.int32)
        high, low = (whole >> 15) + HIGH, (whole & 0x7FFF) + LOW
    else:
        factor = tl.broadcast_to(factor, size.shape)
        above = libdevice.fma_rd(size, factor, tl.zeros_like(size) + 274877906944.0)  # 2^38
        rest = 274886295552.0 - above  # and 2^23
        high, low = bits_of(above), bits_of(libdevice.fma_rd(size, factor, rest))
    return high, low


@triton.jit
def mean_of(sums, count, power, full: tl.constexpr):
    """Sums of integers over their number, times 2^(power - 30). full: it is a power of two"""
    sums, count = sums.to(tl.float32), tl.maximum(count, 1).to(tl.float32)
    if full:
        quotient = sums * float_of(0x7F000000 - bits_of(count))
    else:
        quotient = tl.div_rn(sums, count)
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
    dtype: tl.constexpr = x_at.dtype.element_ty
    counted: tl.constexpr = tile.halved if joins(dtype, tile) else tile
    x, _, _, mask, _, present = read(x_at, numbers, tile)
    found = extremes(x, dtype, spec, counted)
    finite: tl.constexpr = spec.poisons and not averages(spec)  # others are left out
    low, high = ranges(x, found, mask, finite, dtype, spec, counted)
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
    dtype: tl.constexpr = x_at.dtype.element_ty
    counted: tl.constexpr = tile.halved if joins(dtype, tile) else tile
    x, _, _, _, index, present = read(x_at, numbers, tile)
    high, low, top = extremes(x, dtype, spec, counted)
    if tl.max(top) >= EXPONENT:
        high, low = finite_extremes(x, dtype, spec, counted)
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
    stored = choose_step(low, high, poisoned, 1.0, False, spec)
    tl.store(scale + index, narrow_scale(stored, scale.dtype.element_ty), mask=present)
    if spec.asym:
        offset = zero_point(low, step_of(stored, 1.0, spec), spec)
        tl.store(zero + index, offset, mask=present)
