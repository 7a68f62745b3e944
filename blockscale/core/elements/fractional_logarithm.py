# SPDX-License-Identifier: BSD-3-Clause
"""Logarithmic numbers with fractions of an exponent, `log8f3`: 0 and ±2^-(k/8).

Bits beyond those of the range make neighbours closer: ratios of 2^(1/2^F) (Miyashita, Lee and
Murmann: "Convolutional neural networks using logarithmic data representation", 2016, for F = 1).
"""

import re
from functools import cache
from math import isqrt, ldexp

from blockscale.core.element import Element
from blockscale.core.elements.codebook import Codebook

SPELLINGS = "logBfF, B = 4 … 8 and F = 1 … B-2 bits of a fraction"
EXAMPLES = ("log4f1", "log4f2", "log6f3", "log8f1", "log8f3", "log8f6")


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
    """`log4f1` ... `log8f6`."""
    spelled = re.fullmatch(r"log([4-8])f([1-6])", name)
    if spelled is None or int(spelled[2]) > int(spelled[1]) - 2:
        return None
    return _element(int(spelled[1]), int(spelled[2]))
