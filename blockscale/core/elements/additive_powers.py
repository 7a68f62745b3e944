# SPDX-License-Identifier: BSD-3-Clause
"""Additive powers of two, `apot4`: sums of a few powers of two (Li, Dong and Wang, ICLR 2020).

"Additive Powers-of-Two Quantization: An Efficient Non-uniform Discretization for Neural Networks",
section 2.2, with terms of k = 2 bits. Their factor gamma, which makes the largest value that of a
clipping threshold, is the step here: so that values are exact, and a product with one is a few
shifts.
"""

import re
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import frexp

from blockscale.core.element import Element, ElementNumbers
from blockscale.core.elements.codebook import Codebook

SPELLINGS = "apotB, B = 3 … 8 with a sign, uapotB, B = 2 … 8 without (additive powers of two)"
EXAMPLES = ("apot3", "apot4", "apot8", "uapot2", "uapot3", "uapot8")


def magnitudes(bits: int) -> tuple[float, ...]:
    """The 2^bits sums, ascending from 0.

    With n = bits / 2 terms, the term i is 0 or one of 2^-i, 2^-(i+n), 2^-(i+2n). An odd number of
    bits has a term more, 0 or 2^-2n, before which the last power of the others moves back by one.
    No power is in two terms, so that no two sums are equal.
    """
    n, odd = divmod(bits, 2)
    terms = [(0.0, 2.0**-i, 2.0 ** -(i + n), 2.0 ** -(i + 2 * n + odd)) for i in range(n)]
    last = [(0.0, 2.0 ** -(2 * n))] * odd
    return tuple(sorted(map(sum, product(*terms, *last))))


@dataclass(frozen=True)
class AdditivePowers(Codebook):
    """A codebook whose values are sums of powers of two, and so multiples of the smallest."""

    @property
    def grain(self) -> int | None:
        return 1 - frexp(self.smallest)[1]

    def numbers(self, wide: bool) -> ElementNumbers:
        return super().numbers(wide)  # a codebook in every respect


@cache
def _element(bits: int, signed: bool) -> Codebook:
    sizes = magnitudes(bits - signed)
    table = (*sizes, *(-value for value in sizes)) if signed else sizes
    return AdditivePowers(f"{'' if signed else 'u'}apot{bits}", table, "zero")


def read(name: str) -> Element | None:
    """`apot3` ... `apot8`, `uapot2` ... `uapot8`."""
    match = re.fullmatch(r"(u?)apot([2-8])", name)
    if match is None or name == "apot2":  # -1, 0, 1: that is ternary
        return None
    return _element(int(match[2]), not match[1])
