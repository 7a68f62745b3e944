"""Codes that are signs, as binary and ternary have them, in blocks that are `ordinary`.

Elements are compared, not divided. A quotient rounds to 1 where it is more than a half: fl(x / s)
is where x is more than s / 2, which is exact, as the next number is more than 2^-24 of it away.
It is -0, of which the sign is +1, where -x is at most 2^-150 s.
"""

import triton
import triton.language as tl

from blockscale.kernels.cuda.device.lanes import (
    SIGNS,
    greater,
    rounded_down,
    spread_pairs,
    together_as,
)
from blockscale.kernels.cuda.device.numerics import MAGIC, bits_of, float_of
from blockscale.kernels.cuda.device.tile import spread


@triton.constexpr_function
def signs(settled, spec, tile):
    """Whether elements are compared."""
    element = spec.element
    three = element.family == "integer" and (element.low, element.high) == (-1, 1)
    three = three and spec.scale != "two_level" and spec.rounding == "nearest_even"
    known = (three and not spec.asym) or element.family == "binary"
    written = tile.result == "values" or (tile.result == "codes" and tile.packs)
    return settled and known and not spec.recip and written


@triton.jit
def bound(step, spec: tl.constexpr):
    """Elements above it are 1, those below its negative are -1. step: of each unit, as this is"""
    half = step * 0.5
    if spec.element.family == "binary":  # 2^-150 steps, rounded down
        bits = tl.where(half < 8388608.0, half.to(tl.int32), bits_of(step) - (150 << 23))
        half = float_of(bits)
    return half


@triton.jit
def compared(x, step, spec: tl.constexpr, tile: tl.constexpr):
    """Float32 -> 1 for what is above the bound of its unit, and 1 for what is below its negative,
    else 0: float32. A comparison makes a number in one instruction, and a bit in two."""
    limit = spread(bound(step, spec), tile)
    return tl.where(x > limit, 1.0, 0.0), tl.where(x < 0.0 - limit, 1.0, 0.0)


@triton.jit
def compared_pairs(x, step, dtype: tl.constexpr, spec: tl.constexpr, tile: tl.constexpr):
    """Pairs -> ones in the bits of numbers above the bound, and in those of numbers below; of
    binary twice the latter. tile: in pairs"""
    first, second = spread_pairs(rounded_down(bound(step, spec), dtype), tile)
    limit = tl.broadcast_to(first | (second << 16), x.shape)
    below = greater(limit | SIGNS, x, dtype)
    above = below
    if spec.element.family != "binary":
        above = greater(x, limit, dtype)
    return above, below


@triton.jit
def sign_values(x, step, spec: tl.constexpr, tile: tl.constexpr):
    """Float32 -> what their codes mean. step: of each unit"""
    above, below = compared(x, step, spec, tile)
    step = tl.broadcast_to(spread(step, tile), x.shape)
    if spec.element.family == "binary":
        value = tl.fma(below, step * -2.0, step)
    else:
        value = tl.fma(below, 0.0 - step, above * step)
    return value


@triton.jit
def sign_pairs(x, step, dtype: tl.constexpr, spec: tl.constexpr, tile: tl.constexpr):
    """Pairs -> what their codes mean, in pairs. tile: in pairs"""
    above, below = compared_pairs(x, step, dtype, spec, tile)
    first, second = spread_pairs(step, tile)
    size = tl.broadcast_to(together_as(first, second, dtype), x.shape)
    if spec.element.family == "binary":
        word = size | (below & SIGNS)
    else:
        word = (above & size) | (below & (size | SIGNS))
    return word


@triton.jit
def packed_signs(x, step, spec: tl.constexpr, tile: tl.constexpr):
    """Float32 -> bytes of codes, int32 [rows, columns * bits / 8]: counted in the low bits of a
    sum, because multiplying and adding is cheaper than shifting. tile: in numbers"""
    above, below = compared(x, step, spec, tile)
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
    """[rows, columns] -> four neighbours as the digits of one number, the first the lowest."""
    one, two, three, four = fours(number, rows, columns)
    by = tl.zeros_like(one) + base
    return tl.fma(tl.fma(tl.fma(four, by, three), by, two), by, one)


@triton.jit
def packed_sign_pairs(x, step, dtype: tl.constexpr, spec: tl.constexpr, tile: tl.constexpr):
    """Pairs -> the same; what is of the first ones of pairs lies apart until the end."""
    counted: tl.constexpr = tile.halved
    above, below = compared_pairs(x, step, dtype, spec, counted)
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
    """[rows, columns] -> the first, second, third and fourth of each four neighbours."""
    one, two = tl.split(tl.reshape(word, [rows, columns // 2, 2]))
    one, three = tl.split(tl.reshape(one, [rows, columns // 4, 2]))
    two, four = tl.split(tl.reshape(two, [rows, columns // 4, 2]))
    return one, two, three, four
