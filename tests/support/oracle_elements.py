# SPDX-License-Identifier: BSD-3-Clause
"""The elements of docs/numerics.md, section 1.1, and how they are rounded (4) and masked (5).

Written from that page alone. Which element a name means is said by `exact(name, options)` in the
test of each family, `tests/core/elements/test_*.py`: it returns an object with what `Minifloat`
below has, or None for a name of another family. So a new family brings its oracle with its test.
"""

import importlib
import math
import pathlib
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

from tests.support.exact import clamp, exponent, pow2, rounded

FAMILIES = pathlib.Path(__file__).parents[1] / "core" / "elements"


@dataclass(frozen=True)
class Minifloat:
    """A sign, `x` exponent and `y` mantissa bits; the top `reserved` magnitudes are not numbers."""

    x: int
    y: int
    reserved: int
    bias: int
    fraction_bits = 0
    signed = True

    @property
    def codes(self) -> range:
        """Every code as the user sees it."""
        return range(2**self.bits)

    @property
    def levels(self) -> Fraction:
        """What the numerator of a block is divided by."""
        return self.max

    @property
    def smallest_normal(self) -> Fraction:
        return pow2(1 - self.bias)

    @property
    def mbits(self) -> int:
        return self.y

    @property
    def bits(self) -> int:
        return 1 + self.x + self.y

    def magnitude(self, c: int) -> Fraction:
        low = Fraction(c % 2**self.y)
        if c < 2**self.y:
            return low * pow2(1 - self.bias - self.y)
        return (1 + low / 2**self.y) * pow2((c >> self.y) - self.bias)

    @property
    def last(self) -> int:
        return 2 ** (self.x + self.y) - 1 - self.reserved

    @property
    def max(self) -> Fraction:
        return self.magnitude(self.last)

    @property
    def nan(self) -> int | None:
        return 2 ** (self.x + self.y) - 1 if self.reserved else None

    def decode(self, code: int) -> float:
        sign = -1.0 if code >> (self.x + self.y) else 1.0
        c = code % 2 ** (self.x + self.y)
        if (self.x, self.y, self.reserved, c) == (5, 2, 4, 0x7C):
            return sign * math.inf
        return sign * float(self.magnitude(c)) if c <= self.last else math.nan

    def unit(self, v) -> Fraction:
        """The distance of codes around v >= 0."""
        return pow2((max(exponent(v), 1 - self.bias) if v else 1 - self.bias) - self.y)

    def encode(self, y: float, mode: str, _zero: int = 0, u: Fraction | None = None) -> int:
        if math.isnan(y):
            return self.nan or 0
        v = self.max if math.isinf(y) else min(abs(Fraction(y)), self.max)
        negative = math.copysign(1, y) < 0
        unit = self.unit(v)
        k = abs(rounded((-v if negative else v) / unit, mode, u))
        e = exponent(unit) + self.y
        code = min((e + self.bias - 1) * 2**self.y + k, self.last)
        return code + (negative << (self.x + self.y))

    def holds(self, y: float, mode: str, _zero: int = 0) -> bool:
        """Does rounding alone stay within range?"""
        unit = self.unit(abs(Fraction(y)))
        return abs(rounded(Fraction(y) / unit, mode)) * unit <= self.max


@dataclass(frozen=True)
class Integer:
    """`intB`, `uintB` and `ternary`; `qmin` depends on the options."""

    bits: int
    mbits: int
    qmin: int
    qmax: int
    levels: Fraction
    fraction_bits: int
    nan = None
    smallest_normal = 1

    @property
    def signed(self) -> bool:
        return self.qmin < 0

    @property
    def codes(self) -> range:
        return range(self.qmin, self.qmax + 1)

    def decode(self, code: int) -> float:
        return float(code)

    def encode(self, y: float, mode: str, zero: int = 0, u: Fraction | None = None) -> int:
        if not math.isfinite(y):
            return zero if math.isnan(y) else (self.qmax if y > 0 else self.qmin)
        return clamp(rounded(Fraction(y), mode, u) + zero, self.qmin, self.qmax)

    def holds(self, y: float, mode: str, zero: int = 0) -> bool:
        return self.qmin <= rounded(Fraction(y), mode) + zero <= self.qmax


class Binary:
    bits, mbits, fraction_bits, nan, signed = 1, 0, 0, None, True
    codes, levels, smallest_normal, qmax = (-1, 1), Fraction(1), 1, 1

    def decode(self, code: int) -> float:
        return float(code)

    def encode(self, y: float, *_) -> int:
        return -1 if y < 0 else 1

    def holds(self, y: float, *_) -> bool:
        return abs(y) <= 1


def element_of(name: str, options: Iterable[str] = ()) -> Any:
    """The oracle of the element `name` in a format with these options."""
    return _element_of(name, frozenset(options))


@cache
def _element_of(name: str, options: frozenset[str]) -> Any:
    for path in sorted(FAMILIES.glob("test_*.py")):
        module = importlib.import_module(f"tests.core.elements.{path.stem}")
        if hasattr(module, "exact") and (element := module.exact(name, options)) is not None:
            return element
    raise LookupError(f"no test in {FAMILIES} has an oracle for the element {name!r}")
