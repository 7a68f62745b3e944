# SPDX-License-Identifier: BSD-3-Clause
"""Codes that are signs, as binary and ternary have them, in blocks that are `ordinary`.

Elements are compared with one number of their block, not divided. With a step s, a ternary element
is 1 where fl(x / s) is more than a half. That is where x is more than s / 2, which is exact: the
next float32 above s / 2 is more than 2^-24 of it away. A binary element is -1 where x is below
0, unless fl(x / s) is -0, whose sign counts as +1: that is where -x is at most 2^-150 s.
"""

import triton
import triton.language as tl

from blockscale.kernels.cuda.device.lanes import (
    SIGNS,
    greater_in_pairs,
    join_pairs,
    rounded_down,
    spread_pairs,
)
from blockscale.kernels.cuda.device.numerics import MAGIC, bits_of, float_of
from blockscale.kernels.cuda.device.tile import expand


@triton.constexpr_function
def compares(ordinary, spec, tile):
    """Whether codes or values are found in this way: binary and ternary, ordinary blocks."""
    element = spec.element
    three = element.family == "integer" and (element.low, element.high) == (-1, 1)
    three = three and spec.scale != "two_level" and spec.rounding == "nearest_even"
    two_bounds = (three and not spec.asym) or element.family == "binary"
    writes = tile.result == "values" or (tile.result == "codes" and tile.packs)
    return ordinary and two_bounds and not spec.recip and writes


@triton.jit
def bound(step, spec: tl.constexpr):
    """Steps, float32 [units] -> b [units]: elements above b are 1, those below -b are -1."""
    half = step * 0.5
    if spec.element.family == "binary":  # 2^-150 steps, rounded down
        bits = tl.where(half < 8388608.0, half.to(tl.int32), bits_of(step) - (150 << 23))
        half = float_of(bits)
    return half


@triton.jit
def compare(x, step, spec: tl.constexpr, tile: tl.constexpr):
    """Elements float32 [rows, columns] -> 1.0 where they are above the bound b of their unit, else
    0.0; and the same where they are below -b. step: [units]

    A comparison makes a float in one instruction, and a bit in two.
    """
    limit = expand(bound(step, spec), tile)
    return tl.where(x > limit, 1.0, 0.0), tl.where(x < 0.0 - limit, 1.0, 0.0)


@triton.jit
def compared_pairs(x, step, dtype: tl.constexpr, spec: tl.constexpr, tile: tl.constexpr):
    """Pairs [rows, columns] -> pairs of masks: all ones where a number is above the bound of its
    unit, and where it is below its negative; of `binary` the latter twice. tile: in pairs"""
    first, second = spread_pairs(rounded_down(bound(step, spec), dtype), tile)
    limit = tl.broadcast_to(first | (second << 16), x.shape)
    below = greater_in_pairs(limit | SIGNS, x, dtype)
    above = below
    if spec.element.family != "binary":
        above = greater_in_pairs(x, limit, dtype)
    return above, below


@triton.jit
def sign_values(x, step, spec: tl.constexpr, tile: tl.constexpr):
    """Elements float32 [rows, columns] -> what their codes mean, float32. step: [units]"""
    above, below = compare(x, step, spec, tile)
    step = tl.broadcast_to(expand(step, tile), x.shape)
    if spec.element.family == "binary":
        value = tl.fma(below, step * -2.0, step)
    else:
        value = tl.fma(below, 0.0 - step, above * step)
    return value


@triton.jit
def sign_pairs(x, step, dtype: tl.constexpr, spec: tl.constexpr, tile: tl.constexpr):
    """Pairs [rows, columns] -> pairs of what their codes mean. step: [units]; tile: in pairs"""
    above, below = compared_pairs(x, step, dtype, spec, tile)
    first, second = spread_pairs(step, tile)
    size = tl.broadcast_to(join_pairs(first, second, dtype), x.shape)
    if spec.element.family == "binary":
        word = size | (below & SIGNS)
    else:
        word = (above & size) | (below & (size | SIGNS))
    return word


@triton.jit
def packed_signs(x, step, spec: tl.constexpr, tile: tl.constexpr):
    """Elements float32 [rows, columns] -> bytes of codes, int32 [rows, columns * bits / 8].

    Codes are the digits of a float's fraction: multiplying and adding is cheaper than shifting.
    """
    above, below = compare(x, step, spec, tile)
    rows: tl.constexpr = tile.rows
    if spec.element.family == "binary":
        word = in_digits(below, 2, rows, tile.columns)
        low, high = tl.split(tl.reshape(word, [rows, tile.columns // 8, 2]))
        word = tl.fma(high, tl.zeros_like(low) + 16.0, low)
        word = bits_of(word + MAGIC) ^ -1
    else:
        word = in_digits(below, 4, rows, tile.columns)
        word = tl.fma(word, tl.zeros_like(word) + 3.0, in_digits(above, 4, rows, tile.columns))
        word = bits_of(word + MAGIC)
    return word


@triton.jit
def in_digits(number, base: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr):
    """[rows, columns] -> [rows, columns / 4]: four neighbours as the digits of one number, of which
    the first is the lowest."""
    one, two, three, four = fours(number, rows, columns)
    by = tl.zeros_like(one) + base
    return tl.fma(tl.fma(tl.fma(four, by, three), by, two), by, one)


@triton.jit
def packed_sign_pairs(x, step, dtype: tl.constexpr, spec: tl.constexpr, tile: tl.constexpr):
    """Pairs [rows, columns / 2] -> as `packed_signs`; both lanes are kept apart until the end.

    tile: not in pairs
    """
    as_read: tl.constexpr = tile.in_pairs
    above, below = compared_pairs(x, step, dtype, spec, as_read)
    if spec.element.family == "binary":
        one, two, three, four = fours(below, tile.rows, tile.columns // 2)
        word = (one & 0x00010001) | (two & 0x00040004)
        word = word | (three & 0x00100010) | (four & 0x00400040)
        word = (word | (word >> 15)) ^ -1
    else:
        one, two = tl.split(tl.reshape(below, [tile.rows, tile.columns // 4, 2]))
        three, four = tl.split(tl.reshape(above, [tile.rows, tile.columns // 4, 2]))
        word = (one & 0x00030003) | (two & 0x00300030)
        word = word | (three & 0x00010001) | (four & 0x00100010)
        word = (word & 0x33) | ((word >> 14) & 0xCC)
    return word


@triton.jit
def fours(word, rows: tl.constexpr, columns: tl.constexpr):
    """[rows, columns] -> the first, second, third and fourth of each four neighbours: [rows,
    columns / 4] four times."""
    one, two = tl.split(tl.reshape(word, [rows, columns // 2, 2]))
    one, three = tl.split(tl.reshape(one, [rows, columns // 4, 2]))
    two, four = tl.split(tl.reshape(two, [rows, columns // 4, 2]))
    return one, two, three, four
