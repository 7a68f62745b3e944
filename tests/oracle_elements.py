"""The elements of docs/numerics.md, section 1.1, and how they are rounded (4) and masked (5)."""

import math
import re
from dataclasses import dataclass
from fractions import Fraction

from tests.exact import clamp, exponent, pow2, rounded


@dataclass(frozen=True)
class Minifloat:
    """A sign, `x` exponent and `y` mantissa bits; the top `reserved` magnitudes are not numbers."""

    x: int
    y: int
    reserved: int
    bias: int
    fraction_bits = 0

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

    def decode(self, code: int) -> float:
        return float(code)

    def encode(self, y: float, mode: str, zero: int = 0, u: Fraction | None = None) -> int:
        if not math.isfinite(y):
            return zero if math.isnan(y) else (self.qmax if y > 0 else self.qmin)
        return clamp(rounded(Fraction(y), mode, u) + zero, self.qmin, self.qmax)

    def holds(self, y: float, mode: str, zero: int = 0) -> bool:
        return self.qmin <= rounded(Fraction(y), mode) + zero <= self.qmax


class Binary:
    bits, mbits, fraction_bits, nan = 1, 0, 0, None

    def decode(self, code: int) -> float:
        return float(code)

    def encode(self, y: float, *_) -> int:
        return -1 if y < 0 else 1

    def holds(self, y: float, *_) -> bool:
        return abs(y) <= 1


def element_of(name: str, options: set[str] = frozenset()):
    if name == "binary":
        return Binary()
    if name == "ternary":
        return Integer(2, 0, -1, 1, Fraction(1), 0)
    if found := re.fullmatch(r"e(\d+)m(\d+)(?:r(\d+))?", name):
        x, y = int(found[1]), int(found[2])
        reserved = {"e4m3": 1, "e5m2": 4}.get(name, 0) if found[3] is None else int(found[3])
        return Minifloat(x, y, reserved, 2 ** (x - 1) - 1)
    if found := re.fullmatch(r"log(\d+)", name):
        b = int(found[1])
        return Minifloat(b - 1, 0, 0, 2 ** (b - 1) - 1)
    return _integer(name, options)


def _integer(name: str, options: set[str]) -> Integer:
    unsigned, bits = re.fullmatch(r"(u?)int(\d+)", name).groups()
    bits, asym = int(bits), "asym" in options
    if unsigned:
        qmax = 2**bits - 1
        return Integer(bits, bits - 1, 0, qmax, Fraction(qmax), bits - 1)
    qmax = 2 ** (bits - 1) - 1
    wide = bool(options & {"full", "half", "asym"})
    levels = Fraction(2**bits - 1) if asym else qmax + Fraction("half" in options, 2)
    return Integer(bits, bits - 1 if asym else bits - 2, -qmax - wide, qmax, levels, bits - 2)
