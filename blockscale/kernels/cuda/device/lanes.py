# SPDX-License-Identifier: BSD-3-Clause
"""PTX that makes codes of pairs of bfloat16: a few instructions for two, four or eight numbers.

The functions run on the host and return the text of an inline assembly block. In it $0 is the
result and $1 ... the arguments, registers of 32 bits that hold a pair each.
"""

import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

import triton
import triton.language as tl

from blockscale.core.element import ElementNumbers
from blockscale.kernels.cuda.device.numerics import INTERPRETED, bits_of, float_of, narrow, widen
from blockscale.kernels.cuda.device.tile import expand, locate, offsets
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


# Pairs: neighbours of 16 bits, two in an int32 as they lie in memory, one instruction for both.
#
# They pay because arithmetic is short: at 4 bits a code an H200 has time for about nine integer
# instructions for each bfloat16 that memory delivers. A pair holds bfloat16 or float16 numbers
# (`dtype` says which), their bit patterns, or two masks of 16 bits that are all ones or all zeros.
# A `tile` "in pairs" is Tile.in_pairs: its columns are pairs.

PAIRS: tl.constexpr = tl.constexpr(8)  # two instructions, for blocks to be in few threads
MAGNITUDES: tl.constexpr = tl.constexpr(0x7FFF7FFF)
SIGNS: tl.constexpr = tl.constexpr(-0x7FFF8000)
SIGNED: tl.constexpr = tl.constexpr(codes_of_magnitudes())


@triton.constexpr_function
def takes_pairs(dtype, tile):
    """Whether a program takes neighbours in pairs."""
    return dtype.primitive_bitwidth == 16 and tile.pairs


class Read(NamedTuple):
    """What a program has read; [rows, columns], or [rows, columns / 2] where it takes pairs.

    x: numbers, or pairs as int32
    source: pointers to them, to read them again
    at: int64, the index of each number, or of each pair counted in pairs
    mask: bool, which of them exist
    index, present: [units], as a Place has them
    """

    x: Any
    source: Any
    at: Any
    mask: Any
    index: Any
    present: Any


@triton.jit
def read(x_at, extents, tile: tl.constexpr):
    """A program's elements, or pairs of them, from memory: a Read."""
    pairs: tl.constexpr = takes_pairs(x_at.dtype.element_ty, tile)
    place = locate(tile, extents, 2 if pairs else 1)
    if pairs:
        wide: tl.constexpr = tile.kind == "row" or (
            tile.kind == "rectangle" and tile.part == tile.columns
        )
        at = offsets(place.start // 2, place.j, PAIRS if wide else max(2, tile.side // 2))
        source = x_at.to(tl.pointer_type(tl.int32), bitcast=True) + at
    else:
        at = offsets(place.start, place.j, tile.side)
        source = x_at + at
    x = tl.load(source, mask=place.mask, other=0)
    return Read(x, source, at, place.mask, place.index, place.present)


@triton.jit
def split_pairs(word, dtype: tl.constexpr):
    """Pairs [...] of numbers -> the first and the second of each, float32 [...]."""
    if dtype == tl.bfloat16:
        first, second = float_of(word << 16), float_of(word & -0x10000)
    else:
        tl.static_assert(dtype == tl.float16, "pairs are of bfloat16 or float16")
        first, second = float_of_half(word), float_of_half(word >> 16)
    return first, second


@triton.jit
def float_of_half(word):
    """Int32 [...] with a float16 in its low 16 bits -> float32 [...]."""
    return word.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def larger_of_pairs(a, b):
    """Two pairs of int16 -> the pair of their larger ones."""
    return tl.inline_asm_elementwise("max.s16x2 $0, $1, $2;", "=r,r,r", [a, b], tl.int32, True, 1)


@triton.jit
def largest_of_lanes(word, axis: tl.constexpr):
    """Pairs of int16 -> the largest of the first and of the second ones along an axis, int32."""
    if INTERPRETED:
        first, second = tl.max((word << 16) >> 16, axis), tl.max(word >> 16, axis)
    else:
        largest = tl.reduce(word, axis, larger_of_pairs)
        first, second = (largest << 16) >> 16, largest >> 16
    return first, second


@triton.jit
def largest_pattern(word, tile: tl.constexpr):
    """Pairs of int16 [rows, columns] -> the largest of each unit, int32 [units]. tile: in pairs"""
    if tile.kind == "row":
        first, second = largest_of_lanes(word, 1)
        largest = tl.maximum(first, second)
    elif tile.kind == "column":
        first, second = largest_of_lanes(word, 0)
        largest = tl.reshape(tl.join(first, second), [2 * tile.columns])
    elif tile.part == tile.columns:  # one unit: threads meet once
        first, second = largest_of_lanes(tl.reshape(word, [1, tile.rows * tile.columns]), 1)
        largest = tl.maximum(first, second)
    else:
        first, second = largest_of_lanes(word, 0)
        largest = tl.maximum(first, second)
        largest = tl.max(tl.reshape(largest, [tile.columns // tile.part, tile.part]), 1)
    return largest


@triton.jit
def rounded_down(v, dtype: tl.constexpr):
    """Float32 [...], at least 0 -> the bits of the largest number of dtype not above it, int32."""
    if INTERPRETED:
        near = narrow(v, dtype)
        pattern = near.to(tl.int16, bitcast=True).to(tl.int32)
        pattern = tl.where(widen(near) > v, pattern - 1, pattern)
    elif dtype == tl.bfloat16:
        pattern = bits_of(v) >> 16
    else:
        pattern = tl.inline_asm_elementwise(
            "{ .reg .b16 t; cvt.rz.f16.f32 t, $1; cvt.u32.u16 $0, t; }", "=r,f", [v], tl.int32,
            True, 1,
        )  # fmt: skip
    return pattern


@triton.constexpr_function
def for_both(instruction, dtype):
    """PTX of an instruction on two numbers of dtype at once; {} stands for the pair's type."""
    kinds = {tl.bfloat16: "bf16x2", tl.float16: "f16x2"}
    return instruction.format(kinds[dtype])


@triton.jit
def greater_in_pairs(a, b, dtype: tl.constexpr):
    """Two pairs of numbers -> a pair of masks: all ones where a number of a is above that of b."""
    if INTERPRETED:
        one, two = split_pairs(a, dtype)
        first, second = split_pairs(b, dtype)
        above = tl.where(one > first, 0xFFFF, 0) | tl.where(two > second, -0x10000, 0)
    else:
        asm: tl.constexpr = for_both("set.gt.u32.{} $0, $1, $2;", dtype)
        above = tl.inline_asm_elementwise(asm, "=r,r,r", [a, b], tl.int32, True, 1)
    return above


@triton.jit
def spread_pairs(v, tile: tl.constexpr):
    """[units] -> what broadcasts with the first number of each pair, and with the second."""
    if tile.kind == "column":
        first, second = tl.split(tl.reshape(v, [tile.columns, 2]))
        first, second = first[None, :], second[None, :]
    else:
        first = expand(v, tile)
        second = first
    return first, second


@triton.jit
def widened_bits(pattern, dtype: tl.constexpr):
    """The bits of bfloat16 or float16 numbers, int32 [...] -> the bits of the same in float32."""
    if dtype == tl.bfloat16:
        bits = pattern << 16
    else:
        bits = bits_of(float_of_half(pattern))
    return bits


@triton.jit
def join_pairs(first, second, dtype: tl.constexpr):
    """Two float32 [...] -> pairs of bfloat16 or float16, rounded to nearest even."""
    if INTERPRETED:
        first, second = narrow(first, dtype), narrow(second, dtype)
        first, second = first.to(tl.int16, bitcast=True), second.to(tl.int16, bitcast=True)
        word = (first.to(tl.int32) & 0xFFFF) | (second.to(tl.int32) << 16)
    else:
        asm: tl.constexpr = for_both("cvt.rn.{}.f32 $0, $2, $1;", dtype)
        word = tl.inline_asm_elementwise(asm, "=r,f,f", [first, second], tl.int32, True, 1)
    return word


@triton.constexpr_function
def narrowing_of(dtype, ordinary, tile):
    """How pairs become codes without being split (lanes_asm.Narrowing.how), or ""."""
    narrows = not INTERPRETED.value and dtype == tl.bfloat16 and ordinary
    return tile.narrowing.how if narrows else ""


@triton.jit
def narrow_pairs(word, first, first_2, second, second_2, tile: tl.constexpr):
    """Pairs of bfloat16 [...] -> pairs of codes, uint8 [...], or int32 where they have 6 bits.

    first, second: of a Scaling, for the first number of each pair; only the upper 16 bits count.
    first_2, second_2: for the second number of each pair
    """
    how: tl.constexpr = tile.narrowing.how
    asm: tl.constexpr = tile.narrowing.ptx
    one = tl.broadcast_to(upper(bits_of(first), bits_of(first_2)), word.shape)
    if how == "bytes":
        codes = tl.inline_asm_elementwise(asm, "=r,r,r,r,r,r,r,r,r", [word, one], tl.uint8, True, 4)
    elif how == "powers":
        two = tl.broadcast_to(upper(second, second_2), word.shape)
        codes = tl.inline_asm_elementwise(
            asm, "=r,r,r,r,r,r,r,r,r,r,r,r,r", [word, one, two], tl.uint8, True, 4
        )
    else:
        tl.static_assert(how == "word", "unknown way of narrowing pairs")
        codes = tl.inline_asm_elementwise(asm, "=r,r,r", [word, one], tl.int32, True, 1)
    return codes


@triton.jit
def signed_nibbles(word, first, second):
    """Pairs of numbers, for their signs, and codes of their magnitudes -> two codes a byte, uint8.

    first, second: int32 with three bits of code and nothing else in the low 16 bits
    """
    asm: tl.constexpr = SIGNED
    return tl.inline_asm_elementwise(
        asm, "=r,r,r,r,r,r,r,r,r,r,r,r,r", [word, first, second], tl.uint8, True, 4
    )


@triton.jit
def upper(first, second):
    """Two int32 -> the pair of their upper halves."""
    return ((first >> 16) & 0xFFFF) | (second & -0x10000)
