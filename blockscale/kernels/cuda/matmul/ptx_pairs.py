# SPDX-License-Identifier: BSD-3-Clause
"""PTX that decodes two codes of one word at a time, for few rows; ptx.py takes two words.

The pairs are those that lie 16 bits apart, so that one shift and one mask take out both.
"""

from dataclasses import dataclass
from typing import Any

from blockscale.core.element import ElementNumbers
from blockscale.kernels.cuda.matmul.codebook import is_table, looked_up
from blockscale.kernels.cuda.matmul.ptx import (
    bf16,
    both,
    byte,
    check_family,
    constraints,
    decode_small_exponents,
    from_halves,
    integer,
    minifloat,
    native_float8,
    program,
    shifted,
    sign,
    times,
)

WORD = 32


@dataclass(frozen=True)
class Pairs:
    """How few rows read two words (hopper/few.py).

    order: codes of a word as they come, two by two
    bias: what an offset takes away beside the zero point
    program, registers: PTX, and what it takes
    fast, fast_scale, limit: the same for e8m0 scales whose byte is at most `limit`, which make up
        for the element's bias at once; limit is 0 where there is none
    """

    order: tuple[int, ...]
    bias: int
    program: str
    registers: str
    fast: str = ""
    fast_scale: str = ""
    limit: int = 0


NO_PAIRS = Pairs((), 0, "", "")


def pairs(e: ElementNumbers, lift: int | None, last: str, bytes_: bool) -> Pairs:
    """e, lift, last: as for `decode`. bytes_: whether scales are e8m0."""
    gap = 127 - e.bias
    fast: dict[str, Any] = {}
    if bytes_ and e.family == "minifloat" and e.bits < 8 and gap > 0:
        fast["fast"] = decode(e, 0, last)
        fast["fast_scale"] = decode_small_exponents(gap)
        fast["limit"] = 254 - gap
    return Pairs(
        order_of(e),
        bias_of(e),
        decode(e, lift, last),
        constraints(WORD // e.bits, {"": 2, "zero": 4}.get(last, 3)),
        **fast,
    )


def order_of(e: ElementNumbers) -> tuple[int, ...]:
    """Codes of a word as `decode` gives them, two by two."""
    count = WORD // e.bits
    if native_float8(e) and e.mbits == 3:
        return tuple(range(count))
    return tuple(i // 2 + i % 2 * (count // 2) for i in range(count))


def decode(e: ElementNumbers, lift: int | None, last: str) -> str:
    """Two words -> as many registers as a word has codes: pairs of the first, then of the second.

    lift: as for decode_words
    last: "scale" multiplies by another register, "offset" adds it (and bias_of goes with it);
        "zero" subtracts a zero point for each word, of codes of less than 8 bits

    Raises ValueError if the element is of a family that no program decodes.
    """
    check_family(e)
    count = WORD // e.bits
    if is_table(e):
        return _table(e, last)
    lines = []
    for word in range(2):
        lines.append(f"mov.b32 a, ${count + word};")
        if (e.family, e.bits, e.signed) == ("integer", 8, False):
            lines.append("xor.b32 a, a, 0x80808080;")
        if last == "zero":
            lines += _minus_zero(e, f"${count + 2 + word}")
        for i in range(count // 2):
            out = f"${word * count // 2 + i}"
            lines += _pair(e, out, i, lift, last in ("offset", "zero"))
            if last == "scale":
                lines.append(f"mul.rn.bf16x2 {out}, {out}, ${count + 2};")
            elif last == "zero":
                lines.append(f"add.rn.bf16x2 {out}, {out}, v;")
            elif last == "offset":
                lines.append(f"add.rn.bf16x2 {out}, {out}, ${count + 2};")
    return program(lines)


def _minus_zero(e: ElementNumbers, zero: str) -> list[str]:
    """Register v: twice what takes a word's zero point and the bias of its codes away, a bfloat16.

    The bias of signed codes comes first: a negative number in the lower half would carry into the
    upper one.
    """
    signed, half = bias_of(e) > 128, bias_of(e) - 128
    return [
        *([f"add.u32 v, {zero}, {half};"] if signed else []),
        f"prmt.b32 v, {'v' if signed else zero}, 0, 0x1010;",
        f"add.u32 v, v, {both(bf16(-128.0))};",
    ]


def _table(e: ElementNumbers, last: str) -> str:
    """As `decode`, of a table of 16 values. Raises ValueError where there are zero points."""
    if last not in ("", "scale"):
        raise ValueError(f"tables have no zero points, {last!r} was asked for")
    lines = ["prmt.b32 l, $8, $9, 0x5410;", "prmt.b32 h, $8, $9, 0x7632;"]
    lines += looked_up(e, "l", "h", lambda i, word: f"${4 * word + i}")
    if last:
        lines += [f"mul.rn.bf16x2 ${i}, ${i}, $10;" for i in range(8)]
    return program(lines)


def six(e: ElementNumbers, scaled: bool) -> Pairs:
    """Of 6-bit codes: twelve words are 64 codes -> 32 registers of pairs, i and 16 + i of each 32.

    Those lie in two times three words, at the same bits: bytes of both come together first.
    """
    lines = []
    for block in range(2):
        words = [f"${32 + 6 * block + j}" for j in range(6)]
        lines += _sixes(e, words, 16 * block, range(16), f"${44 + block}" if scaled else "")
    order = tuple(j // 32 * 32 + j % 32 // 2 + j % 2 * 16 for j in range(64))
    return Pairs(order, bias_of(e), program(lines), constraints(32, 14 if scaled else 12))


def six_turn(e: ElementNumbers, half: int, scaled: bool) -> str:
    """Of six words, each of two rows, the pairs i and 16 + i for the first or last eight i -> eight
    registers of one row, eight of the other. scaled: by a register of two factors, of one each."""
    lines = []
    for row in range(2):
        words = [f"${16 + 2 * j + row}" for j in range(6)]
        if scaled:
            lines.append(f"prmt.b32 b, $28, 0, 0x{'3232' if row else '1010'};")
        codes = range(8 * half, 8 * half + 8)
        lines += _sixes(e, words, 8 * row - 8 * half, codes, "b" if scaled else "")
    return program(lines)


def _sixes(e: ElementNumbers, words: list[str], out: int, codes: range, by: str) -> list[str]:
    """Pairs i and 16 + i of the codes in six words -> registers from `out` on, times `by`."""
    check_family(e)
    one = {"minifloat": minifloat, "integer": integer}[e.family]  # binary codes are one bit
    lines = []
    for i in codes:
        if i % 2 == 0:
            lines += _window(words, 3 * (i // 4) + i % 4 // 2)
        at = 6 * i % 24 - 8 * (i % 4 // 2)
        lines += one(e, f"${out + i}", "a", at)
        if by:
            lines.append(f"mul.rn.bf16x2 ${out + i}, ${out + i}, {by};")
    return lines


def _window(words: list[str], byte: int) -> list[str]:
    """Register a: two bytes from `byte` on of three words, and of the next three."""
    at, shift = byte // 4, byte % 4
    if shift == 3:
        return [
            f"shf.r.wrap.b32 l, {words[at]}, {words[at + 1]}, 24;",
            f"shf.r.wrap.b32 h, {words[at + 3]}, {words[at + 4]}, 24;",
            "prmt.b32 a, l, h, 0x5410;",
        ]
    order = f"0x{5 + shift}{4 + shift}{1 + shift}{shift}"
    return [f"prmt.b32 a, {words[at]}, {words[at + 3]}, {order};"]


def bias_of(e: ElementNumbers) -> int:
    """What an offset has to take away beside the zero point."""
    small = e.family == "integer" and e.bits < 8
    return 128 + (1 << (e.bits - 1) if e.signed else 0) if small else 0


def _pair(e: ElementNumbers, out: str, i: int, lift: int | None, biased: bool) -> list[str]:
    """Register a, a word -> its i-th pair."""
    at = i * e.bits
    if e.family == "binary":
        return sign(out, "a", at)
    if e.family == "integer":
        if e.bits == 8:
            return [shifted("t", "a", -at), *byte(e, out)]
        lines = integer(e, out, "a", at)
        return [*lines[:2], f"mov.b32 {out}, t;"] if biased else lines
    if native_float8(e):
        return _float8_pair(e, out, i)
    if e.bits == 4 and (1 << (e.bits - 1)) - 1 == e.max_code:
        return _nibble(e, out, at, lift)
    return minifloat(e, out, "a", at, lift)


def _nibble(e: ElementNumbers, out: str, at: int, lift: int | None) -> list[str]:
    """A float of 4 bits: one product brings its magnitude and, 12 bits up, its sign into place."""
    place = 7 - e.mbits
    source, at = ("a", at) if at < 8 else ("l", at - 8)
    lift = 127 - e.bias if lift is None else lift
    return [
        *(["shr.u32 l, a, 8;"] if source == "l" else []),
        f"and.b32 t, {source}, {both(15 << at)};",
        f"mul.lo.u32 t, t, {(1 << (place - at)) + (1 << (12 - at))};",
        f"and.b32 {out}, t, {both(0x8000 | 7 << place)};",
        *(times(lift, out) if lift else []),
    ]


def _float8_pair(e: ElementNumbers, out: str, i: int) -> list[str]:
    """As _float8."""
    if e.mbits == 2:
        pair = [shifted("t", "a", 8 - 8 * i), "and.b32 t, t, 0xFF00FF00;"]
    else:
        pair = ["mov.b32 {p, q}, a;", f"cvt.rn.f16x2.e4m3x2 t, {'pq'[i]};"]
    return [*pair, *from_halves(out)]
