# SPDX-License-Identifier: BSD-3-Clause
"""The extremes of a program's units, from the bits of floats, which order alike (numerics.md, 3.1).

x are numbers [rows, columns] of one dtype, or pairs of it as int32 (lanes.py); `tile` counts as x
does. Results are int32 [units], the bits of float32 numbers that are at least 0.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from blockscale.kernels.cuda.device.element import magnitude
from blockscale.kernels.cuda.device.lanes import SIGNS, largest_pattern, split_pairs, widened_bits
from blockscale.kernels.cuda.device.numerics import EXPONENT, bits_of, float_of, widen
from blockscale.kernels.cuda.device.tile import reduced

SIGN: tl.constexpr = tl.constexpr(-0x80000000)
NOTHING: tl.constexpr = tl.constexpr(-0x80000000)  # less than any `sort_key`
LARGE: tl.constexpr = tl.constexpr(0x5D800000)  # the bits of 2^60
ONE: tl.constexpr = tl.constexpr(0x00800000)  # of an exponent


class Extremes(NamedTuple):
    """Of each unit, int32 [units], as bits of float32 numbers that are at least 0.

    Where blocks have offsets, `high` and `low` are of `sort_key`, and may be below 0; NOTHING where
    there is no number.

    high: the largest number
    low: the smallest number, negated
    top: the largest magnitude: infinity's bits or more if something is not finite, and then high
         and low may be as well
    """

    high: Any
    low: Any
    top: Any


@triton.jit
def one_side(bits, side: tl.constexpr, sign: tl.constexpr):
    """Bits of numbers -> of their magnitudes ("both"), of them ("above") or negated ("below").

    sign: the bits of their signs
    """
    if side == "both":
        bits = bits & (sign ^ -1)
    elif side == "below":
        bits = bits ^ sign
    return bits


@triton.jit
def peak(x, side: tl.constexpr, dtype: tl.constexpr, tile: tl.constexpr):
    """Each unit's largest number on a side of 0, at least 0; infinity and NaN are larger than all
    others. side: as `one_side` takes it"""
    if x.dtype == tl.int32:
        largest = widened_bits(
            tl.maximum(largest_pattern(one_side(x, side, SIGNS), tile), 0), dtype
        )
    else:
        largest = tl.maximum(reduced(one_side(bits_of(widen(x)), side, SIGN), "largest", tile), 0)
    return largest


@triton.jit
def sort_key(bits):
    """The bits of float32 numbers -> int32 that order as they do, -0 below 0. Its own inverse; that
    of a number negated is -1 less it."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def bare_extremes(x, mask, finite: tl.constexpr, dtype: tl.constexpr, tile: tl.constexpr):
    """A tile -> `high` and `low` of Extremes where blocks have offsets.

    mask: which elements exist; finite: only what is finite counts
    """
    if x.dtype == tl.int32:
        first, second = split_pairs(x, dtype)
        first, least = both_ends(bits_of(first), mask, finite)
        second, least_2 = both_ends(bits_of(second), mask, finite)
        if tile.kind == "column":
            high, high_2 = reduced(first, "largest", tile), reduced(second, "largest", tile)
            high = tl.reshape(tl.join(high, high_2), [2 * tile.columns])
            low, low_2 = reduced(least, "largest", tile), reduced(least_2, "largest", tile)
            low = tl.reshape(tl.join(low, low_2), [2 * tile.columns])
        else:
            high = reduced(tl.maximum(first, second), "largest", tile)
            low = reduced(tl.maximum(least, least_2), "largest", tile)
    else:
        up, down = both_ends(bits_of(widen(x)), mask, finite)
        high, low = reduced(up, "largest", tile), reduced(down, "largest", tile)
    return high, low


@triton.jit
def both_ends(bits, mask, finite: tl.constexpr):
    """The bits of float32 numbers -> `sort_key` of them and of them negated; else NOTHING."""
    up = sort_key(bits)
    there = mask
    if finite:
        there = there & (magnitude(bits) < EXPONENT)
    return tl.where(there, up, NOTHING), tl.where(there, -1 - up, NOTHING)


@triton.jit
def as_range(high, low, spec: tl.constexpr):
    """`high` and `low` of Extremes -> the smallest and the largest number, float32 [units]."""
    if spec.offset != "":
        none = high == NOTHING
        largest = tl.where(none, 0.0, float_of(sort_key(high)))
        smallest = tl.where(none, 0.0, 0.0 - float_of(sort_key(low)))  # never -0
    else:
        largest, smallest = float_of(high), 0.0 - float_of(low)
    return smallest, largest


@triton.jit
def all_wide(peaks, spec: tl.constexpr):
    """Of blocks with offsets: whether all of a program's are ordinary, because what they range over
    is neither small nor, as their numbers, large. peaks: Extremes"""
    low, high = as_range(peaks.high, peaks.low, spec)
    least: tl.constexpr = spec.least
    far = (peaks.top > LARGE) | (bits_of(high - low) < least)
    return tl.max(far.to(tl.int32)) == 0


@triton.jit
def extremes(x, mask, dtype: tl.constexpr, spec: tl.constexpr, tile: tl.constexpr):
    """A tile -> the Extremes of each unit. mask: which elements exist, as tile counts them"""
    if spec.offset != "":
        high, low = bare_extremes(x, mask, False, dtype, tile)
        top = tl.maximum(high, low)
    elif spec.statistic == "range":
        high, low = peak(x, "above", dtype, tile), peak(x, "below", dtype, tile)
        top = tl.maximum(high, low)
    else:
        top = peak(x, "both", dtype, tile)
        high, low = top, top
        if spec.statistic == "high":
            high = peak(x, "above", dtype, tile)
    return Extremes(high, low, top)


@triton.jit
def finite_peak(x, side: tl.constexpr, dtype: tl.constexpr, tile: tl.constexpr):
    """As `peak`, among what is finite."""
    if x.dtype == tl.int32:
        first, second = split_pairs(x, dtype)
        first, second = one_side(bits_of(first), side, SIGN), one_side(bits_of(second), side, SIGN)
        if tile.kind == "column":
            first = reduced(first + ONE, "largest", tile)
            second = reduced(second + ONE, "largest", tile)
            largest = tl.reshape(tl.join(first, second), [2 * tile.columns])
        else:
            largest = reduced(tl.maximum(first + ONE, second + ONE), "largest", tile)
    else:
        bits = one_side(bits_of(widen(x)), side, SIGN)
        largest = reduced(bits + ONE, "largest", tile)
    return tl.maximum(largest, ONE) - ONE  # it wraps around to negative from infinity on


@triton.jit
def finite_extremes(x, mask, dtype: tl.constexpr, spec: tl.constexpr, tile: tl.constexpr):
    """`high` and `low` of Extremes, among what is finite."""
    if spec.offset != "":
        high, low = bare_extremes(x, mask, True, dtype, tile)
    elif spec.statistic == "range" or spec.statistic == "high":
        high = finite_peak(x, "above", dtype, tile)
        low = finite_peak(x, "below", dtype, tile)
    else:
        high = finite_peak(x, "both", dtype, tile)
        low = high
    return high, low


@triton.jit
def far_from_zero(x, top, dtype: tl.constexpr, spec: tl.constexpr):
    """Whether no quotient but that of 0 is 0 or has a remainder of 0: one bool for the program.

    It is so if all steps are at most 1, or if nothing but 0 is below 2^-60. top: of Extremes
    """
    highest = tl.max(top)
    far = highest <= spec.most
    if far == 0:
        if x.dtype == tl.int32:
            first, second = split_pairs(x, dtype)
            least = tl.minimum(least_magnitude(first), least_magnitude(second))
        else:
            least = least_magnitude(widen(x))
        far = (least >= 0x21800000) & (highest < 0x53800000)  # 2^-60, 2^40
    return far


@triton.jit
def least_magnitude(x):
    """Float32 -> the bits of the smallest magnitude but 0 in all of it, int32."""
    bits = magnitude(bits_of(x))
    return tl.min(tl.where(bits == 0, EXPONENT, bits))
