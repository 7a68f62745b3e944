"""The extremes of a program's units, from the bits of floats, which order alike (numerics.md, 3.1).

x are numbers [rows, columns] of one dtype, or pairs of it as int32 (lanes.py); `tile` counts as x
does. Results are int32 [units], the bits of float32 numbers that are at least 0.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from blockscale.kernels.cuda.device.element import magnitude
from blockscale.kernels.cuda.device.lanes import SIGNS, largest_pattern, split_pairs, widened_bits
from blockscale.kernels.cuda.device.numerics import EXPONENT, bits_of, widen
from blockscale.kernels.cuda.device.tile import reduced

SIGN: tl.constexpr = tl.constexpr(-0x80000000)
ONE: tl.constexpr = tl.constexpr(0x00800000)  # of an exponent


class Extremes(NamedTuple):
    """Of each unit, int32 [units], as bits of float32 numbers that are at least 0.

    high: the largest number
    low: the smallest number, negated
    top: the largest magnitude: infinity's bits or more if something is not finite, and then high
         and low may be as well
    """

    high: Any
    low: Any
    top: Any


@triton.jit
def turned(bits, side: tl.constexpr, sign: tl.constexpr):
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
    others. side: as `turned` takes it"""
    if x.dtype == tl.int32:
        largest = widened_bits(tl.maximum(largest_pattern(turned(x, side, SIGNS), tile), 0), dtype)
    else:
        largest = tl.maximum(reduced(turned(bits_of(widen(x)), side, SIGN), "largest", tile), 0)
    return largest


@triton.jit
def extremes(x, dtype: tl.constexpr, spec: tl.constexpr, tile: tl.constexpr):
    """A tile -> the Extremes of each unit."""
    if spec.statistic == "range":
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
        first, second = turned(bits_of(first), side, SIGN), turned(bits_of(second), side, SIGN)
        if tile.kind == "column":
            first = reduced(first + ONE, "largest", tile)
            second = reduced(second + ONE, "largest", tile)
            largest = tl.reshape(tl.join(first, second), [2 * tile.columns])
        else:
            largest = reduced(tl.maximum(first + ONE, second + ONE), "largest", tile)
    else:
        bits = turned(bits_of(widen(x)), side, SIGN)
        largest = reduced(bits + ONE, "largest", tile)
    return tl.maximum(largest, ONE) - ONE  # it wraps around to negative from infinity on


@triton.jit
def finite_extremes(x, dtype: tl.constexpr, spec: tl.constexpr, tile: tl.constexpr):
    """`high` and `low` of Extremes, among what is finite."""
    if spec.statistic == "range" or spec.statistic == "high":
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
