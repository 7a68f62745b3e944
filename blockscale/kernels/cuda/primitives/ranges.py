# SPDX-License-Identifier: BSD-3-Clause
"""The mean magnitude of a program's units, for binary and ternary scales (docs/numerics.md, 3.2).

x are numbers [rows, columns] of one dtype, or pairs of it as int32 (lanes.py); `tile` counts as x
does. The sum is one of integers: each magnitude is multiplied by a power of two, 2^shift, so that
the largest one of its unit is below 2^31, and its fraction is dropped. A sum of up to 2^15 such
integers is kept in two int32, one of their low 15 bits and one of those above.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from blockscale.kernels.cuda.device.division import chooses_means
from blockscale.kernels.cuda.device.lanes import (
    MAGNITUDES,
    greater_in_pairs,
    read,
    rounded_down,
    split_pairs,
    spread_pairs,
    takes_pairs,
)
from blockscale.kernels.cuda.device.numerics import (
    EXPONENT,
    INTERPRETED,
    bits_of,
    float_of,
    narrow,
    pow2,
    widen,
)
from blockscale.kernels.cuda.device.scale import (
    block_offset,
    choose_step,
    narrow_scale,
    numerator,
    step_of,
    zero_point,
)
from blockscale.kernels.cuda.device.tile import expand, reduced
from blockscale.kernels.cuda.primitives.extremes import as_range, extremes, finite_extremes, peak

HIGH: tl.constexpr = tl.constexpr(0x52800000)  # the bits of 2^38
LOW: tl.constexpr = tl.constexpr(0x4B000000)  # the bits of 2^23


@triton.jit
def means(
    x, peaks, mask, finite: tl.constexpr, dtype: tl.constexpr, spec: tl.constexpr,
    tile: tl.constexpr,
):  # fmt: skip
    """A tile -> the mean magnitude of each unit, float32 [units]; or of what is above 0.7 of it.

    peaks: its Extremes; mask: bool, which elements or pairs exist
    finite: everything is finite, and 2^shift is a float32
    """
    pairs: tl.constexpr = x.dtype == tl.int32
    size = x & MAGNITUDES if pairs else tl.abs(widen(x))
    top = peaks.top
    full: tl.constexpr = finite and tile.kind == "row" and tile.even
    if full:
        count = tl.zeros_like(top) + (2 * tile.columns if pairs else tile.columns)
    elif finite:
        count = reduced(mask.to(tl.int32), "total", tile) * (2 if pairs else 1)
    else:
        size, good = without_infinity(size, mask, dtype)
        count = count_ones(good, dtype, tile)
        top = peak(size, "both", dtype, tile)
    power = tl.maximum(top >> 23, 1) - 127
    mean = mean_of(total(size, 30 - power, finite, dtype, tile), count, power, full)
    if spec.statistic == "mean_above":
        least = mean * 0.699999988079071044921875
        if pairs:
            first, second = spread_pairs(rounded_down(least, dtype), tile)
            limit = tl.broadcast_to(first | (second << 16), size.shape)
            above = greater_in_pairs(size, limit, dtype)
            size, count = size & above, count_ones(above, dtype, tile)
        else:
            above = tl.where(size > expand(least, tile), 1.0, 0.0)
            size, count = size * above, reduced(above, "total", tile)
        if coarse(dtype, finite, tile):
            sums = coarse_total(size, 30 - power, tile)
        else:
            sums = total(size, 30 - power, finite, dtype, tile)
        mean = mean_of(sums, count, power, False)
    return mean


@triton.jit
def without_infinity(size, mask, dtype: tl.constexpr):
    """Magnitudes -> them with 0 for what is not finite, and masks of all ones for what is finite
    and exists."""
    if size.dtype == tl.int32:
        one, two = split_pairs(size, dtype)
        good = tl.where(mask & (bits_of(one) < EXPONENT), 0xFFFF, 0)
        good = good | tl.where(mask & (bits_of(two) < EXPONENT), -0x10000, 0)
        size = size & good
    else:
        good = tl.where(mask & (bits_of(size) < EXPONENT), -1, 0)
        size = float_of(bits_of(size) & good)
    return size, good


@triton.jit
def count_ones(ones, dtype: tl.constexpr, tile: tl.constexpr):
    """Masks, or up to 2^15 pairs of them -> how many are all ones in each unit, int32 [units]."""
    count = 0 - reduced(ones, "total", tile)
    if dtype.primitive_bitwidth == 16 and tile.pairs:  # 2^16 seconds less 2^16 - 1 firsts
        first = count & 0xFFFF
        count = first + ((count - first) >> 16) + first
    return count


@triton.jit
def total(size, shift, finite: tl.constexpr, dtype: tl.constexpr, tile: tl.constexpr):
    """Magnitudes -> the sum of each unit's integers, int64 [units]. shift: int32 [units]"""
    factor = pow2(shift)
    if not finite:  # two factors: 2^156 is not a float32
        factor = pow2(shift >> 1)
    other = pow2(shift - (shift >> 1))
    pairs: tl.constexpr = size.dtype == tl.int32
    padded: tl.constexpr = tile.rows * tile.columns * (2 if pairs else 1) // units_of(tile)
    if pairs:
        one, two = split_pairs(size, dtype)
        high, low = limbs(one, factor, other, finite, tile)
        high_2, low_2 = limbs(two, factor, other, finite, tile)
        high, low = high + high_2, low + low_2
    else:
        high, low = limbs(size, factor, other, finite, tile)
    high, low = both_totals(high, low, tile)
    high, low = high - wrap(padded * HIGH), low - wrap(padded * LOW)
    return (high.to(tl.int64) << 15) + low


@triton.jit
def both_totals(high, low, tile: tl.constexpr):
    """Two int32 [rows, columns] -> the totals of each unit; threads of a row meet once for both."""
    if tile.kind == "row":
        high, low = tl.split(tl.sum(tl.join(high, low), 1))
    else:
        high, low = reduced(high, "total", tile), reduced(low, "total", tile)
    return high, low


@triton.constexpr_function
def coarse(dtype, finite, tile):
    """Whether what is above 0.7 of a mean are multiples of 2^-22 of the largest number's binade: in
    units of up to 2^14 the mean is at least 2^-14 of it, and a bfloat16 has 8 bits."""
    pairs = dtype == tl.bfloat16 and tile.pairs and tile.kind == "row"
    return pairs and finite and 4 <= tile.columns <= 2**13


@triton.jit
def coarse_total(size, shift, tile: tl.constexpr):
    """As `total`, of pairs that are `coarse`: one sum rounds each to multiples of 2^8."""
    factor = expand(pow2(shift), tile)
    one, two = split_pairs(size, tl.bfloat16)
    if INTERPRETED:
        whole = ((one * factor).to(tl.int32) >> 8) + ((two * factor).to(tl.int32) >> 8)
    else:
        factor = tl.broadcast_to(factor, size.shape)
        start = tl.zeros_like(one) + 2147483648.0
        whole = bits_of(tl.fma(one, factor, start)) + bits_of(tl.fma(two, factor, start))
        whole = whole - wrap(2 * 0x4F000000)  # the bits of 2^31
    whole = tl.sum(tl.reshape(whole, [tile.rows, tile.columns // 4, 4]), 2)  # below 2^27
    high, low = both_totals(whole >> 13, whole & 0x1FFF, tile)
    return (high.to(tl.int64) << 21) + (low.to(tl.int64) << 8)


@triton.constexpr_function
def units_of(tile):
    """How many units a tile has."""
    return {"row": tile.rows, "column": tile.columns}.get(tile.kind, tile.columns // tile.part)


@triton.constexpr_function
def wrap(number):
    """The low 32 bits of a whole number, as an int32."""
    return (int(number) + 2**31) % 2**32 - 2**31


@triton.jit
def limbs(size, factor, other, finite: tl.constexpr, tile: tl.constexpr):
    """Magnitudes -> HIGH + the bits of their integers from 15 on, LOW + those below: int32.

    factor: 2^shift of each unit, or where it may be no float32 one factor of it, and `other` the
    other one. Both are sums rounded down: beside 2^38 neighbours are 2^15 apart, and from 2^23 on
    1. What libdevice's function flushes, subnormals, is less than 1.
    """
    factor = expand(factor, tile)
    if not finite:
        size, factor = size * factor, expand(other, tile)
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
    """Sums over their count, times 2^(power - 30). full: the count is a power of two"""
    sums, count = sums.to(tl.float32), tl.maximum(count, 1).to(tl.float32)
    if full:
        quotient = sums * float_of(0x7F000000 - bits_of(count))
    else:
        quotient = tl.div_rn(sums, count)
    return quotient * 9.313225746154785e-10 * pow2(power)


# The range of each block, from which its scale is chosen, and the kernels that pass over it alone.
#
# x are numbers [rows, columns] of one dtype, or pairs of it as int32 (lanes.py); `tile` counts as x
# does.


@triton.jit
def ranges(
    x, peaks, mask, finite: tl.constexpr, dtype: tl.constexpr, spec: tl.constexpr,
    tile: tl.constexpr,
):  # fmt: skip
    """A tile of whole blocks -> the `low` and `high` of each, float32 [units], low <= 0 <= high
    unless blocks have offsets.

    peaks: its Extremes; mask: bool, which elements or pairs exist; finite: all elements are
    """
    if chooses_means(spec):
        high = means(x, peaks, mask, finite, dtype, spec, tile)
        low = 0.0 - high
    else:
        up, down = peaks.high, peaks.low
        if not finite:
            up, down = finite_extremes(x, mask, dtype, spec, tile)
        low, high = as_range(up, down, spec)
    return low, high


@triton.jit
def largest_numerator(
    x_at, work, row, extents,
    spec: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """The largest numerator of blocks that are not poisoned, merged into `work`.

    x_at: float32, bfloat16 or float16 [batch, m, k], contiguous
    work: int32 [outer scales], 0 before: the bits of the largest numerator of each
    row: how many scales in order share an outer one, where tile.outers; else all do
    extents: a tiling.Extents
    """
    dtype: tl.constexpr = x_at.dtype.element_ty
    as_read: tl.constexpr = tile.in_pairs if takes_pairs(dtype, tile) else tile
    data = read(x_at, extents, tile)
    peaks = extremes(data.x, data.mask, dtype, spec, as_read)
    finite: tl.constexpr = spec.poisons and not chooses_means(spec)  # others are left out
    low, high = ranges(data.x, peaks, data.mask, finite, dtype, spec, as_read)
    present = data.present
    if spec.poisons:
        present = present & (peaks.top < EXPONENT)
    a = tl.where(present, numerator(low, high, spec), 0.0)
    if tile.outers:
        tl.atomic_max(work + data.index // row, bits_of(a), mask=data.present, sem="relaxed")
    else:
        tl.atomic_max(work, tl.max(bits_of(a)), sem="relaxed")


@triton.jit
def merge_extremes(
    x_at, work, count, extents,
    spec: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """The extremes of parts of blocks, merged by atomic maxima, whose order does not matter.

    x_at: float32, bfloat16 or float16 [batch, m, k], contiguous
    work: int32 [3, count], 0 before, with offsets -2^31: the `high`, `low` and `top` of each block,
          as Extremes has them; `low` and `top` only for formats that ask for them
    count: how many blocks there are
    extents: a tiling.Extents
    """
    dtype: tl.constexpr = x_at.dtype.element_ty
    as_read: tl.constexpr = tile.in_pairs if takes_pairs(dtype, tile) else tile
    data = read(x_at, extents, tile)
    high, low, top = extremes(data.x, data.mask, dtype, spec, as_read)
    if tl.max(top) >= EXPONENT:
        high, low = finite_extremes(data.x, data.mask, dtype, spec, as_read)
    at = work + data.index
    tl.atomic_max(at, high, mask=data.present, sem="relaxed")
    if spec.statistic == "range":
        tl.atomic_max(at + count, low, mask=data.present, sem="relaxed")
    if spec.poisons:
        tl.atomic_max(at + 2 * count, top, mask=data.present, sem="relaxed")


@triton.jit
def finish(work, scale, zero, offset, count, spec: tl.constexpr, columns: tl.constexpr):
    """What `merge_extremes` left -> stored scales, and zero points or offsets.

    work: int32 [3, count]; count: how many blocks there are
    scale: [count], as stored; zero: int32 or floats [count], offset: floats [count]; None
        where the format has none
    columns: blocks of one program
    """
    index = tl.program_id(0).to(tl.int64) * columns + tl.arange(0, columns)
    present = index < count
    high = tl.load(work + index, mask=present, other=0)
    low = tl.load(work + count + index, mask=present, other=0)
    low, high = as_range(high, low, spec)
    has_nan = high != high
    if spec.poisons:
        has_nan = tl.load(work + 2 * count + index, mask=present, other=0) >= EXPONENT
    stored = choose_step(low, high, has_nan, 1.0, False, spec)
    tl.store(scale + index, narrow_scale(stored, scale.dtype.element_ty), mask=present)
    if spec.asym:
        zeros = zero_point(low, step_of(stored, 1.0, spec), spec)
        tl.store(zero + index, narrow(zeros, zero.dtype.element_ty), mask=present)
    if spec.offset != "":
        offsets = block_offset(low, step_of(stored, 1.0, spec), spec)
        tl.store(offset + index, narrow(offsets, offset.dtype.element_ty), mask=present)
