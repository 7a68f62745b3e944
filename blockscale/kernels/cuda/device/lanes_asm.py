# SPDX-License-Identifier: BSD-3-Clause
"""PTX that makes codes of pairs of bfloat16: a few instructions for two, four or eight numbers.

The functions run on the host and return the text of an inline assembly block. In it $0 is the
result and $1 ... the arguments, registers of 32 bits that hold a pair each.
"""

import struct
from dataclasses import dataclass

from blockscale.core.element import ElementNumbers
from blockscale.kernels.cuda.spec import Spec


@dataclass(frozen=True)
class Narrowing:
    """How pairs of an ordinary block become codes without being split into two float32.

    how: "bytes" makes four bytes, of two codes each, from four pairs and their four factors;
         "powers" makes the same from four pairs and two numbers for each (powers.turning_points);
         "word" makes one int32 with two codes from one pair and its factor; "" is no way
    ptx: the instructions
    """

    how: str = ""
    ptx: str = ""


NO_NARROWING = Narrowing()


def narrowing(spec: Spec) -> Narrowing:
    """The way for a format, if there is one: minifloats without NaN, rounded to nearest even."""
    element = spec.element
    minifloat = element.family == "minifloat" and element.nan < 0
    if not minifloat or spec.rounding != "nearest_even" or spec.recip or spec.offset:
        return NO_NARROWING
    if spec.scale not in (("e8m0",) if element.mbits else ("fp32", "bf16", "pow2")):
        return NO_NARROWING
    if element.bits == 4 and element.mbits == 0:
        return Narrowing("powers", binades(element))
    if element.bits == 4 and element.mbits == 1:
        return Narrowing("bytes", three_lines(element))
    if element.bits == 6 and element.mbits in (2, 3):
        return Narrowing("word", through_fp8(element))
    return NO_NARROWING


def both(value: float) -> str:
    """A number that is a bfloat16, as a pair of it twice in hexadecimal."""
    half: int = struct.unpack("<I", struct.pack("<f", value))[0] >> 16
    return f"0x{half:04X}{half:04X}"


def three_lines(element: ElementNumbers) -> str:
    """PTX: four pairs and four pairs of factors -> four bytes of two e2mY codes each.

    As element.three_lines, in the 8 bits of a bfloat16: from 128 on neighbours are 1 apart.
    """
    one = 1 << element.mbits
    return nibbles(
        [
            "mul.rn.bf16x2 a, a, {second};",
            f"mov.b32 u, {both(128.0)}; mov.b32 v, {both(one)}; fma.rn.bf16x2 b, a, v, u;",
            f"mov.b32 u, {both(128.0 + one)}; mov.b32 v, {both(one / 2)};",
            "fma.rn.bf16x2 c, a, v, u; min.s16x2 b, b, c;",
            f"mov.b32 u, {both(128.0 + 2 * one)}; mov.b32 v, {both(one / 4)};",
            "fma.rn.bf16x2 c, a, v, u; min.s16x2 b, b, c;",
            f"mov.b32 c, {both(128.0 + element.max_code)}; min.s16x2 b, b, c;",
            "shl.b32 b, b, 12;",
        ]
    )


def binades(element: ElementNumbers) -> str:
    """PTX: four pairs and four pairs of both turning points -> four bytes of two codes each.

    As powers.binades; an exponent begins at bit 7, and a code of four bits lies there.
    """
    top = (element.max_code << 7) + 0x7F
    return nibbles(
        [
            "add.s16x2 b, a, {second}; mov.b32 c, 0; max.s16x2 b, b, c;",
            "add.s16x2 c, a, {third}; mov.b32 u, 0x00800080; max.s16x2 c, c, u;",
            f"min.s16x2 b, b, c; mov.b32 c, 0x{top:04X}{top:04X}; min.s16x2 b, b, c;",
            "shl.b32 b, b, 5;",
        ]
    )


def codes_of_magnitudes() -> str:
    """PTX: four pairs, and codes of their magnitudes (lanes.signed_nibbles) -> as `nibbles`."""
    return nibbles(["prmt.b32 b, {second}, {third}, 0x5410; shl.b32 b, b, 12;"])


def nibbles(magnitudes: list[str]) -> str:
    """PTX: four pairs -> four bytes of two codes with a sign each.

    magnitudes: instructions that make b, with codes of three bits in bits 12 to 14 of both lanes,
        of a, the pair without signs; {second} and {third} are the registers that belong to it
    """
    lines = ["{ .reg .b32 a, b, c, x<4>, u, v, w;"]
    for i in range(4):
        x = f"${i + 1}"
        lines.append(f"and.b32 a, {x}, 0x7FFF7FFF;")
        lines += [each.format(second=f"${i + 5}", third=f"${i + 9}") for each in magnitudes]
        lines.append(f"lop3.b32 x{i}, {x}, b, 0x80008000, 0xE4;")  # c ? a : b
    return " ".join(
        [
            *lines,
            "prmt.b32 u, x0, x1, 0x7351; prmt.b32 v, x2, x3, 0x7351;",
            "prmt.b32 w, u, v, 0x5410; prmt.b32 u, u, v, 0x7632;",
            "shr.u32 w, w, 4; lop3.b32 $0, w, u, 0x0F0F0F0F, 0xE4; }",
        ]
    )


def through_fp8(element: ElementNumbers) -> str:
    """PTX: a pair and its factors -> two codes of 6 bits, with other bits above them.

    Times a power of two the element's values are the smallest of an 8-bit type with as many bits
    for the fraction, of the same codes.
    """
    kind, bias = {2: ("e5m2", 15), 3: ("e4m3", 7)}[element.mbits]
    return " ".join(
        [
            "{ .reg .b32 a, b, c; .reg .b16 d; .reg .f32 f, g;",
            "mul.rn.bf16x2 a, $1, $2;",
            f"mov.b32 b, {both(element.high)}; min.bf16x2 a, a, b;",
            f"mov.b32 b, {both(-element.high)}; max.bf16x2 a, a, b;",
            f"mov.b32 b, {both(2.0 ** (element.bias - bias))}; mul.rn.bf16x2 a, a, b;",
            "shl.b32 b, a, 16; mov.b32 f, b; and.b32 b, a, 0xFFFF0000; mov.b32 g, b;",
            f"cvt.rn.satfinite.{kind}x2.f32 d, g, f; cvt.u32.u16 a, d;",
            "shr.u32 b, a, 2; lop3.b32 b, a, b, 0x1F, 0xE4;",
            "shr.u32 c, a, 4; lop3.b32 $0, c, b, 0x800, 0xE4; }",
        ]
    )
