# SPDX-License-Identifier: BSD-3-Clause
"""Codebooks in products of bfloat16: parts of values, and the programs that look them up."""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from blockscale.core.element import ElementNumbers

# Tables of values as sums of tables of bfloat16, which tensor cores multiply exactly.
#
# A product with a table is the sum of the products with its parts. Times one number, which the sums
# are divided by, values may need fewer parts: those of fp4 are whole twelfths, and those of nf4 lie
# nearer to what two bfloat16 hold than they must. One bfloat16 for each is enough where a bfloat16
# result hides what is lost (`nearest_of`).

Numbers = NDArray[np.float64]
_UNIT = 2.0**-24
_NEAR = 1.0  # units that are lost of a value where one part may stand for it
_ALLOWED = 24.0  # the same of several: the op allows 64 for all of a sum (docs/numerics.md, 7)
_HIDDEN = 2.0**15  # units: half a unit of a bfloat16 result
_MOST = 3  # parts, which hold any float32
_TRIED = 1 << 16  # numbers that a table is multiplied by in turn


@dataclass(frozen=True)
class CodebookParts:
    """The values times `multiplier` are, nearly, the sums of the tables, each of bfloat16."""

    multiplier: float
    tables: tuple[tuple[float, ...], ...]


@cache
def nearest_of(element: ElementNumbers, sums: float) -> CodebookParts | None:
    """One bfloat16 for each value of a table, where that and what sums lose is less than half a
    unit of a bfloat16 result (docs/numerics.md, 7); else None.

    sums: units of 2^-24 that sums of products lose
    """
    values = _fractions(element)
    loss, multiplier = _best(values, 1 + np.arange(_TRIED) / _TRIED, 1)
    return _parts(element, multiplier, 1) if loss + sums < _HIDDEN else None


def _fractions(element: ElementNumbers) -> Numbers:
    """The values' magnitudes, times powers of two: their parts are these' times the same."""
    values = np.array([v for v in element.values if v and v == v])
    return np.unique(np.frexp(np.abs(values))[0])


@cache
def parts_of(element: ElementNumbers) -> CodebookParts:
    """The fewest parts of an element of the family "codebook"."""
    values = _fractions(element)
    small, many = np.arange(1.0, 65.0), 1 + np.arange(_TRIED) / _TRIED
    for count in range(1, _MOST + 1):
        for candidates, allowed in ((small[:1], 0.0), (small, _NEAR), (many, _ALLOWED)):
            if count == 1 and allowed == _ALLOWED:
                continue
            best = _best(values, candidates, count)
            if best[0] <= allowed or count == _MOST:
                return _parts(element, best[1], count)
    raise AssertionError("three bfloat16 hold any float32")


def _best(values: Numbers, multipliers: Numbers, count: int) -> tuple[float, float]:
    """Of the multipliers the one with which least is lost of any value: units lost, and it."""
    targets = values[:, None] * multipliers.astype(np.float32).astype(np.float64)
    loss = np.abs(_rest(targets, count) / targets).max(0) / _UNIT
    at = int(loss.argmin())
    return float(loss[at]), float(np.float32(multipliers[at]))


def _rest(targets: Numbers, count: int) -> Numbers:
    """What `count` bfloat16 leave."""
    for _ in range(count):
        targets = targets - _nearest(targets)
    return targets


def _nearest(targets: Numbers) -> Numbers:
    """The nearest bfloat16, of numbers that are far from the ends of their range."""
    fraction, exponent = np.frexp(targets)
    return np.ldexp(np.rint(fraction * 256) / 256, exponent)


def _parts(element: ElementNumbers, multiplier: float, count: int) -> CodebookParts:
    values = np.array(element.values)
    rest, tables = np.where(np.isnan(values), 0.0, values) * multiplier, []
    for _ in range(count):
        near = _nearest(rest)
        tables.append(tuple(np.where(np.isnan(values), np.nan, near).tolist()))
        rest = rest - near
    return CodebookParts(multiplier, tuple(tables))


# PTX that looks 4-bit codes up in a table of 16 bfloat16, by permuting bytes.
#
# A permutation picks four of eight bytes by three bits each. So 16 bytes take two of them, and a
# third one picks by the fourth bit; the upper and the lower bytes of the values are looked up
# apart.

SELECT = "0xE4"  # lop3: c ? a : b
AND_OR = "0xEA"  # lop3: (a & b) | c
REGISTERS = ".reg .b32 c0, c1, c2, c3, c4, c5;"


def is_table(e: ElementNumbers) -> bool:
    """Whether the element is a table of 16 bfloat16."""
    return e.family == "codebook" and e.bits == 4 and all(_bits(v) & 0xFFFF == 0 for v in e.values)


def looked_up(e: ElementNumbers, one: str, other: str, out: Callable[[int, int], str]) -> list[str]:
    """Codes of two registers -> the i-th of both as a pair, the first one's in the low half.

    out: (i, its half) -> the register that gets the pair i, or "" where it is not asked for; codes
        4 to 7, in the upper halves of `one` and `other`, are pairs 0 to 3 of the half 1
    """
    bits = [_bits(value) >> 16 for value in e.values]
    upper, lower = ([b >> 8 for b in bits], [b & 0xFF for b in bits])
    lines = [REGISTERS]
    for odd in range(2):
        if odd:  # codes 1 and 3 of both in turn, and in the upper half 5 and 7
            lines += [f"shr.u32 c0, {one}, 4;", f"lop3.b32 c0, {other}, c0, 0xF0F0F0F0, {SELECT};"]
        else:
            lines += [f"shl.b32 c0, {other}, 4;", f"lop3.b32 c0, c0, {one}, 0xF0F0F0F0, {SELECT};"]
        lines += [
            "shr.u32 c1, c0, 1;",
            f"lop3.b32 c1, c1, 0x44444444, 0x32103210, {AND_OR};",
            "and.b32 c0, c0, 0x77777777;",
        ]
        for half in range(2):
            first, second = out(odd, half), out(odd + 2, half)
            if half and (first or second):
                lines += ["shr.u32 c0, c0, 16;", "shr.u32 c1, c1, 16;"]
            if first or second:
                lines += [*_bytes(upper, "c2"), *_bytes(lower, "c3")]
            lines += [f"prmt.b32 {first}, c3, c2, 0x5140;"] if first else []
            lines += [f"prmt.b32 {second}, c3, c2, 0x7362;"] if second else []
    return lines


def _bytes(table: list[int], to: str) -> list[str]:
    """The bytes of a table of 16 at the four codes of c0 and c1 -> a register."""
    words = [f"0x{struct.unpack('<I', bytes(table[i : i + 4]))[0]:08X}" for i in range(0, 16, 4)]
    return [
        f"mov.b32 c4, {words[0]};",
        f"prmt.b32 c4, c4, {words[1]}, c0;",
        f"mov.b32 c5, {words[2]};",
        f"prmt.b32 c5, c5, {words[3]}, c0;",
        f"prmt.b32 {to}, c4, c5, c1;",
    ]


def _bits(value: float) -> int:
    """Of a float32."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])
