# SPDX-License-Identifier: BSD-3-Clause
"""Logarithmic numbers, `log4`: a sign and an exponent; the values are 0 and ±2^-k."""

import re
from dataclasses import dataclass, field

from blockscale.core.element import Element, ElementNumbers
from blockscale.core.elements.minifloat import Minifloat

SPELLINGS = "log2 … log8"
GRAIN = 14  # bits behind the point with which 1 is an integer of 16 bits
EXAMPLES = tuple(f"log{bits}" for bits in range(2, 9))


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


def read(name: str) -> Element | None:
    """`log2` ... `log8`."""
    spelled = re.fullmatch(r"log([2-8])", name)
    return Logarithmic(int(spelled[1]) - 1) if spelled else None
