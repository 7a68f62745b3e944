# SPDX-License-Identifier: BSD-3-Clause
"""PTX that decodes packed codes to bfloat16, two at a time: exact up to 8 bits.

Triton's own integer and float arithmetic takes one instruction an element and step. At 4 bits an
H200 has about five for each element that memory delivers, so decoding works on pairs: the same
code of two neighbouring words lies in the two halves of a register, which is the pair that a
tensor core reads. device/element.py has the same in plain Triton, for the interpreter.
"""

from blockscale.core.element import ElementNumbers
from blockscale.kernels.cuda.matmul.codebook import is_table, looked_up

FAMILIES = ("integer", "minifloat", "binary")  # of elements, which there are programs for
AND_OR = "0xEA"  # lop3: (a & b) | c
AND_XOR = "0x6A"  # lop3: (a & b) ^ c


def both(half: int) -> str:
    """The 16 bits `half` in each half of a register."""
    return f"0x{half & 0xFFFF:04X}{half & 0xFFFF:04X}"


def bf16(value: float) -> int:
    """The bits of a bfloat16 that is a whole number below 256 or a power of two."""
    mantissa, exponent = abs(value).hex().removeprefix("0x").split("p")
    fraction = int((mantissa.partition(".")[2] + "00")[:2], 16) >> 1
    return (value < 0) << 15 | (int(exponent) + 127) << 7 | fraction


def shifted(to: str, source: str, by: int) -> str:
    """`to` = source << by; a negative `by` shifts right."""
    if by == 0:
        return f"mov.b32 {to}, {source};"
    return f"shl.b32 {to}, {source}, {by};" if by > 0 else f"shr.u32 {to}, {source}, {-by};"


def integer(e: ElementNumbers, out: str, source: str, at: int) -> list[str]:
    """A code of at most 7 bits as the last bits of 128 + code, from which 128 goes."""
    half = 1 << (e.bits - 1) if e.signed else 0
    mask = (1 << e.bits) - 1
    return [
        shifted("t", source, -at),
        f"lop3.b32 t, t, {both(mask)}, {both(bf16(128.0) | half)}, {AND_XOR};",
        f"mov.b32 u, {both(bf16(-128.0 - half))};",
        f"add.rn.bf16x2 {out}, t, u;",
    ]


def byte(e: ElementNumbers, out: str) -> list[str]:
    """Eight bits in each half of t: seven below 128, and the uppermost makes another 128, which is
    to subtract, one of 256. Of unsigned codes it is inverted."""
    one = both(bf16(128.0))
    lines = [
        f"lop3.b32 u, t, {both(0x7F)}, {one}, {AND_OR};",
        f"lop3.b32 t, t, {both(0x80)}, {both(bf16(-128.0))}, {AND_OR};",
        f"add.rn.bf16x2 {out}, u, t;",
    ]
    return lines if e.signed else [*lines, f"mov.b32 v, {one};", f"add.rn.bf16x2 {out}, {out}, v;"]


def sign(out: str, source: str, at: int) -> list[str]:
    """One bit: 1 is +1, 0 is -1."""
    minus = both(bf16(-1.0))
    return [
        shifted("t", source, 15 - at),
        f"lop3.b32 {out}, t, 0x80008000, {minus}, {AND_XOR};",
    ]


def minifloat(
    e: ElementNumbers, out: str, source: str, at: int, lift: int | None = None
) -> list[str]:
    """Exponent and mantissa where a bfloat16 has them, times 2^lift: exact.

    Without one it is what makes up for the biases. Lift 0 leaves subnormal numbers.
    """
    width, place = e.bits - 1, 7 - e.mbits
    lift = 127 - e.bias if lift is None else lift
    lines = [
        shifted("t", source, place - at),
        f"and.b32 t, t, {both(((1 << width) - 1) << place)};",
        shifted("u", source, 15 - width - at),
        f"lop3.b32 u, u, 0x80008000, t, {AND_OR};",
    ]
    if lift:
        first = min(lift, 127)
        for power in (first, lift - first):
            lines += times(power, "u") if power else []
    return [*lines, *_reserved(e, "t", "u", width + place), f"mov.b32 {out}, u;"]


def nibble(e: ElementNumbers, out: str, source: str, at: int, lift: int | None) -> list[str]:
    """Four bits, all of them numbers: one product brings magnitude and sign into their places.

    Products have processors of their own, which bitwise operations, of half their rate, leave idle.
    """
    place, low = 7 - e.mbits, at % 8
    lift = 127 - e.bias if lift is None else lift
    if at >= 8:
        shift, source = [f"shr.u32 t, {source}, 8;"], "t"
    else:
        shift = []
    return [
        *shift,
        f"and.b32 t, {source}, {both(15 << low)};",
        f"mul.lo.u32 t, t, {(1 << (place - low)) + (1 << (12 - low))};",
        f"and.b32 {out}, t, {both(0x8000 | 7 << place)};",
        *(times(lift, out) if lift else []),
    ]


def times(power: int, register: str) -> list[str]:
    """Both halves times 2^power."""
    return [
        f"mov.b32 v, {both(bf16(2.0**power))};",
        f"mul.rn.bf16x2 {register}, {register}, v;",
    ]


def _float8(e: ElementNumbers, out: str, code: int) -> list[str]:
    """The hardware's own float8: e5m2 is the upper byte of a float16, e4m3 has an instruction."""
    if e.mbits == 2:
        pair = [f"prmt.b32 t, a, b, 0x{4 + code}0{code}0;", "and.b32 t, t, 0xFF00FF00;"]
    else:
        pair = [
            f"prmt.b32 t, a, b, 0x00{4 + code}{code};",
            "mov.b32 {p, q}, t;",
            "cvt.rn.f16x2.e4m3x2 t, p;",
        ]
    return [*pair, *from_halves(out)]


def from_halves(out: str) -> list[str]:
    """Two float16 in t -> two bfloat16."""
    return [
        "mov.b32 {p, q}, t;",
        "cvt.f32.f16 x, p;",
        "cvt.f32.f16 y, q;",
        f"cvt.rn.bf16x2.f32 {out}, y, x;",
    ]


def _reserved(e: ElementNumbers, magnitude: str, value: str, top: int) -> list[str]:
    """Magnitude codes that are no numbers carry into bit `top`, and from there into a NaN.

    Where one of them is infinity, its mantissa is 0: only the exponent is filled in.
    """
    count = (1 << (e.bits - 1)) - 1 - e.max_code
    if not count:
        return []
    low = 7 if e.infinity >= 0 else 6
    return [
        f"add.u32 {magnitude}, {magnitude}, {both(count << (7 - e.mbits))};",
        f"and.b32 {magnitude}, {magnitude}, {both(1 << top)};",
        f"shr.u32 {magnitude}, {magnitude}, {top - low};",
        f"mul.lo.u32 {magnitude}, {magnitude}, {(1 << (15 - low)) - 1};",
        f"or.b32 {value}, {value}, {magnitude};",
    ]


def program(lines: list[str]) -> str:
    """The lines with what registers they use."""
    registers = ".reg .b32 a, b, l, h, t, u, v; .reg .f32 x, y; .reg .b16 p, q;"
    return "{ " + registers + "\n" + "\n".join(lines) + "\n}"


def decode_words(e: ElementNumbers, lift: int | None = None, only: range | None = None) -> str:
    """Two words of 32 bits -> 32 / bits registers, the i-th code of both as bfloat16.

    e: an element of 1, 2, 4 or 8 bits, of one of FAMILIES; ValueError is raised of any other
    lift: of a minifloat of fewer than 8 bits. With 0, values are too small by 2^(127 - bias),
        which the scale can make up for at once.
    only: which codes of a word, by default all
    """
    check_family(e)
    only = range(32 // e.bits) if only is None else only
    planes = len(only)
    lines = [
        f"mov.b32 a, ${planes};",
        f"mov.b32 b, ${planes + 1};",
        "prmt.b32 l, a, b, 0x5410;",
        "prmt.b32 h, a, b, 0x7632;",
    ]
    if is_table(e):
        places = {i: f"${place}" for place, i in enumerate(only)}
        codes = looked_up(e, "a", "b", lambda i, half: places.get(i + 4 * half, ""))
        return program([*lines[:2], *codes])
    if (e.family, e.bits, e.signed) == ("integer", 8, False):
        lines += [f"xor.b32 {word}, {word}, 0x80808080;" for word in "ab"]
    for place, i in enumerate(only):
        lines += _decode_one(e, f"${place}", i, lift)
    return program(lines)


def _decode_one(e: ElementNumbers, out: str, i: int, lift: int | None) -> list[str]:
    """The i-th codes of the words a and b, whose lower and upper halves are l and h -> `out`."""
    source, at = "lh"[i * e.bits // 16], i * e.bits % 16
    if e.family == "binary":
        return sign(out, source, at)
    if e.family == "integer":
        if e.bits == 8:
            return [f"prmt.b32 t, a, b, 0x0{4 + i}0{i};", *byte(e, out)]
        return integer(e, out, source, at)
    if native_float8(e):
        return _float8(e, out, i)
    if e.bits == 4 and e.max_code == 7:
        return nibble(e, out, source, at, lift)
    return minifloat(e, out, source, at, lift)


def check_family(e: ElementNumbers) -> None:
    """Raises ValueError of an element of a family that no program decodes: it is not to be taken
    for another one."""
    if e.family not in FAMILIES and not is_table(e):
        raise ValueError(
            f"no PTX decodes elements of the family {e.family!r}: expected one of "
            f"{', '.join(FAMILIES)}, or a table of 16 bfloat16. `reading` is to say None of such a "
            "format, so that its weight is dequantized"
        )


def native_float8(e: ElementNumbers) -> bool:
    """Whether the hardware reads the element: OCP's e4m3 and e5m2, as they are by default."""
    count = (1 << (e.bits - 1)) - 1 - e.max_code
    kind = (e.family, e.bits, e.mbits, e.bias, count)
    return kind in (("minifloat", 8, 3, 7, 1), ("minifloat", 8, 2, 15, 4))


def decode_bytes(e: ElementNumbers, lift: int = 0) -> str:
    """Four codes of a minifloat of 8 bits, times 2^lift -> two registers of bfloat16.

    Raises ValueError if it is none.
    """
    if e.family != "minifloat":
        raise ValueError(f"no PTX decodes inner scales that are {e.family}: expected minifloat")
    lines = ["prmt.b32 l, $2, 0, 0x4140;", "prmt.b32 h, $2, 0, 0x4342;"]
    for i, source in enumerate("lh"):
        if not native_float8(e):
            lines += minifloat(e, f"${i}", source, 0, 127 - e.bias + lift)
            continue
        if e.mbits == 2:
            lines.append(f"shl.b32 t, {source}, 8;")
        else:
            lines += ["mov.b32 a, $2;", "mov.b32 {p, q}, a;", f"cvt.rn.f16x2.e4m3x2 t, {'pq'[i]};"]
        lines += from_halves(f"${i}")
        lines += times(lift, f"${i}") if lift else []
    return program(lines)


def decode_small_exponents(lift: int) -> str:
    """Four e8m0 bytes -> two registers of bfloat16, 2^(byte - 127 + lift): right to 254 - lift."""
    lines = ["prmt.b32 l, $2, 0, 0x4140;", "prmt.b32 h, $2, 0, 0x4342;"]
    for out, source in (("$0", "l"), ("$1", "h")):
        lines += [f"add.u32 t, {source}, {both(lift)};", f"shl.b32 {out}, t, 7;"]
    return program(lines)


def decode_exponents_below(lift: int) -> str:
    """Four e8m0 bytes -> two registers of bfloat16, 2^(byte - 127 + lift), lift >= 0; from 255 -
    lift on they are infinite, then NaN."""
    lines = ["prmt.b32 l, $2, 0, 0x4140;", "prmt.b32 h, $2, 0, 0x4342;"]
    for out, source in (("$0", "l"), ("$1", "h")):
        lines += [
            f"add.u32 t, {source}, {both(lift)};",
            "and.b32 u, t, 0x01000100;",
            "shr.u32 u, u, 2;",
            "shl.b32 t, t, 7;",
            "mul.lo.u32 u, u, 0x1FF;",
            f"or.b32 {out}, t, u;",
        ]
    return program(lines)


def decode_exponents(fraction_bits: int) -> str:
    """Four e8m0 bytes -> two registers of bfloat16, 2^(byte - 127 - fraction_bits); 255 is NaN.

    2^-127 is a subnormal bfloat16, and so is all that the fraction bits may leave of it.
    """
    lines = ["prmt.b32 l, $2, 0, 0x4140;", "prmt.b32 h, $2, 0, 0x4342;"]
    for out, source in (("$0", "l"), ("$1", "h")):
        lines += [
            f"shl.b32 t, {source}, 7;",
            f"add.u32 u, {source}, 0x00010001;",  # bit 8 where the byte is 255
            "shr.u32 u, u, 2;",
            "and.b32 u, u, 0x00400040;",
            "or.b32 t, t, u;",
            f"xor.b32 u, {source}, 0x00FF00FF;",  # 255 where the byte is 0
            "add.u32 u, u, 0x00010001;",
            "shr.u32 u, u, 2;",
            "and.b32 u, u, 0x00400040;",
            "or.b32 t, t, u;",
        ]
        if fraction_bits:
            lines += [
                f"mov.b32 v, {both(bf16(2.0**-fraction_bits))};",
                "mul.rn.bf16x2 t, t, v;",
            ]
        lines += [f"mov.b32 {out}, t;"]
    return program(lines)


def constraints(outputs: int, inputs: int) -> str:
    """What Triton wants to know of the registers: all of 32 bits."""
    return ",".join(["=r"] * outputs + ["r"] * inputs)
