# SPDX-License-Identifier: BSD-3-Clause
"""Tables of values as sums of tables of bfloat16, which tensor cores multiply exactly.

A product with a table is the sum of the products with its parts. Times one number, which the sums
are divided by, values may need fewer parts: those of fp4 are whole twelfths, and those of nf4 lie
nearer to what two bfloat16 hold than they must. One bfloat16 for each is enough where a bfloat16
result hides what is lost (`nearest_of`).
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from blockscale.core.element import ElementNumbers

Numbers = NDArray[np.float64]
_UNIT = 2.0**-24
_NEAR = 1.0  # units that are lost of a value where one part may stand for it
_ALLOWED = 24.0  # the same of several: the op allows 64 for all of a sum (docs/numerics.md, 7)
_HIDDEN = 2.0**15  # units: half a unit of a bfloat16 result
_MOST = 3  # parts, which hold any float32
_TRIED = 1 << 16  # numbers that a table is multiplied by in turn


@dataclass(frozen=True)
class Parts:
    """The values times `multiplier` are, nearly, the sums of the tables, each of bfloat16."""

    multiplier: float
    tables: tuple[tuple[float, ...], ...]


@cache
def nearest_of(element: ElementNumbers, sums: float) -> Parts | None:
    """One bfloat16 for each value of a table, where that and what sums lose is less than half a
    unit of a bfloat16 result (docs/numerics.md, 7); else None.

    sums: units of 2^-24 that sums of products lose
    """
    values = _fractions(element)
    lost, multiplier = _best(values, 1 + np.arange(_TRIED) / _TRIED, 1)
    return _parts(element, multiplier, 1) if lost + sums < _HIDDEN else None


def _fractions(element: ElementNumbers) -> Numbers:
    """The values' magnitudes, times powers of two: their parts are these' times the same."""
    values = np.array([v for v in element.values if v and v == v])
    return np.unique(np.frexp(np.abs(values))[0])


@cache
def parts_of(element: ElementNumbers) -> Parts:
    """The fewest parts of an element of the family "codebook"."""
    values = _fractions(element)
    small, many = np.arange(1.0, 65.0), 1 + np.arange(_TRIED) / _TRIED
    for count in range(1, _MOST + 1):
        for candidates, allowed in ((small[:1], 0.0), (small, _NEAR), (many, _ALLOWED)):
            if count == 1 and allowed == _ALLOWED:
                continue
            found = _best(values, candidates, count)
            if found[0] <= allowed or count == _MOST:
                return _parts(element, found[1], count)
    raise AssertionError("three bfloat16 hold any float32")


def _best(values: Numbers, multipliers: Numbers, count: int) -> tuple[float, float]:
    """Of the multipliers the one with which least is lost of any value: units lost, and it."""
    wanted = values[:, None] * multipliers.astype(np.float32).astype(np.float64)
    lost = np.abs(_rest(wanted, count) / wanted).max(0) / _UNIT
    at = int(lost.argmin())
    return float(lost[at]), float(np.float32(multipliers[at]))


def _rest(wanted: Numbers, count: int) -> Numbers:
    """What `count` bfloat16 leave."""
    for _ in range(count):
        wanted = wanted - _nearest(wanted)
    return wanted


def _nearest(wanted: Numbers) -> Numbers:
    """The nearest bfloat16, of numbers that are far from the ends of their range."""
    fraction, exponent = np.frexp(wanted)
    return np.ldexp(np.rint(fraction * 256) / 256, exponent)


def _parts(element: ElementNumbers, multiplier: float, count: int) -> Parts:
    values = np.array(element.values)
    rest, tables = np.where(np.isnan(values), 0.0, values) * multiplier, []
    for _ in range(count):
        near = _nearest(rest)
        tables.append(tuple(np.where(np.isnan(values), np.nan, near).tolist()))
        rest = rest - near
    return Parts(multiplier, tuple(tables))
