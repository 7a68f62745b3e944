# SPDX-License-Identifier: BSD-3-Clause
"""Logarithmic numbers: a sign and an exponent, `log4`, or one with a fraction, `log8f3`.

The values are 0 and ±2^-k, or ±2^-(k/8): bits beyond those of the range make neighbours closer, in
ratios of 2^(1/2^F) (Miyashita, Lee and Murmann: "Convolutional neural networks using logarithmic
data representation", 2016, for F = 1).
"""

import re
from dataclasses import dataclass, field
from functools import cache
from math import isqrt, ldexp

from blockscale.core.element import Element, ElementNumbers
from blockscale.core.elements.codebook import Codebook
from blockscale.core.elements.minifloat import Minifloat

SPELLINGS = "log2 … log8; logBfF, B = 4 … 8 and F = 1 … B-2 bits of a fraction"
GRAIN = 14  # bits behind the point with which 1 is an integer of 16 bits
WHOLE = tuple(f"log{bits}" for bits in range(2, 9))
FRACTIONAL = ("log4f1", "log4f2", "log6f3", "log8f1", "log8f3", "log8f6")
EXAMPLES = (*WHOLE, *FRACTIONAL)


@dataclass(frozen=True)
class Logarithmic(Minifloat):
    """A minifloat without mantissa whose largest value is 1: products are sums of exponents."""

    mantissa_bits: int = field(default=0, init=False)
    reserved: int = field(default=0, init=False)

    @property
    def name(self) -> str:
        return f"log{self.bits}"

    @property
    def bias(self) -> int:
        return int(2**self.exponent_bits) - 1

    @property
    def grain(self) -> int | None:
        return min(self.bias - 1, GRAIN)

    def numbers(self, wide: bool) -> ElementNumbers:
        return super().numbers(wide)  # a minifloat in every respect


# With fractions of an exponent: tables.


def power(numerator: int, fraction_bits: int) -> float:
    """2^(numerator / 2^fraction_bits), rounded to the nearest float32 by integer arithmetic."""
    whole, part = divmod(numerator, 2**fraction_bits)
    # The root of 2^part of this degree, as an integer with 30 more bits than the 24 that stay; the
    # root is irrational unless part is 0, so that no tie and no exact case is lost by cutting.
    root = 2**part << (54 * 2**fraction_bits)
    for _ in range(fraction_bits):
        root = isqrt(root)
    return ldexp((root + 2**30) >> 31, whole + 31 - 54)


@cache
def _element(bits: int, fraction_bits: int) -> Codebook:
    top = 2 ** (bits - 1) - 1
    magnitudes = [0.0] + [power(code - top, fraction_bits) for code in range(1, top + 1)]
    return Codebook(
        f"log{bits}f{fraction_bits}", (*magnitudes, *(-value for value in magnitudes)), "zero"
    )


def read(name: str) -> Element | None:
    """`log2` ... `log8`, `log4f1` ... `log8f6`."""
    match = re.fullmatch(r"log([2-8])(?:f([1-6]))?", name)
    if match is None:
        return None
    bits, fraction_bits = int(match[1]), int(match[2] or 0)
    if not fraction_bits:
        return Logarithmic(bits - 1)
    return _element(bits, fraction_bits) if bits >= 4 and fraction_bits <= bits - 2 else None
