"""Neighbours of 16 bits, two in an int32, as they lie in memory: one instruction for both.

At 4 bits an H200 has about nine integer instructions for each bfloat16 that memory delivers.
"""

import triton
import triton.language as tl

from blockscale.kernels.cuda.device.lanes_asm import codes_of_magnitudes
from blockscale.kernels.cuda.device.numerics import INTERPRETED, bits_of, float_of, narrow, widen
from blockscale.kernels.cuda.device.tile import locate, offsets, spread

PAIRS: tl.constexpr = tl.constexpr(8)  # two instructions, for blocks to be in few threads
MAGNITUDES: tl.constexpr = tl.constexpr(0x7FFF7FFF)
SIGNS: tl.constexpr = tl.constexpr(-0x7FFF8000)
SIGNED: tl.constexpr = tl.constexpr(codes_of_magnitudes())


@triton.constexpr_function
def joins(dtype, tile):
    """Whether a program takes neighbours in pairs."""
    return dtype.primitive_bitwidth == 16 and tile.pairs


@triton.jit
def read(x_at, numbers, tile: tl.constexpr):
    """A program's elements, or pairs of them, and what `locate` says beside where they lie.

    Returns (elements, where to read them again, index of each one or pair, mask, index of each
    unit's scale, present).
    """
    paired: tl.constexpr = joins(x_at.dtype.element_ty, tile)
    start, j, mask, index, present = locate(tile, numbers, 2 if paired else 1)
    if paired:
        wide: tl.constexpr = tile.kind == "row" or (
            tile.kind == "tile" and tile.part == tile.columns
        )
        at = offsets(start // 2, j, PAIRS if wide else max(2, tile.side // 2))
        place = x_at.to(tl.pointer_type(tl.int32), bitcast=True) + at
    else:
        at = offsets(start, j, tile.side)
        place = x_at + at
    return tl.load(place, mask=mask, other=0), place, at, mask, index, present


@triton.jit
def apart(word, dtype: tl.constexpr):
    """Pairs -> the first and the second of each, float32."""
    if dtype == tl.bfloat16:
        first, second = float_of(word << 16), float_of(word & -0x10000)
    else:
        first, second = half_float(word), half_float(word >> 16)
    return first, second


@triton.jit
def half_float(word):
    """The low 16 bits, of a float16 -> float32."""
    return word.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def larger(a, b):
    """Of two pairs of signed patterns the larger ones."""
    return tl.inline_asm_elementwise("max.s16x2 $0, $1, $2;", "=r,r,r", [a, b], tl.int32, True, 1)


@triton.jit
def largest_lanes(word, axis: tl.constexpr):
    """Pairs of signed patterns -> the largest first and second ones along an axis, int32."""
    if INTERPRETED:
        first, second = tl.max((word << 16) >> 16, axis), tl.max(word >> 16, axis)
    else:
        found = tl.reduce(word, axis, larger)
        first, second = (found << 16) >> 16, found >> 16
    return first, second


@triton.jit
def largest_pattern(word, tile: tl.constexpr):
    """Pairs of signed patterns -> the largest of each unit, int32. tile: in pairs"""
    if tile.kind == "row":
        first, second = largest_lanes(word, 1)
        found = tl.maximum(first, second)
    elif tile.kind == "column":
        first, second = largest_lanes(word, 0)
        found = tl.reshape(tl.join(first, second), [2 * tile.columns])
    elif tile.part == tile.columns:  # one unit: threads meet once
        first, second = largest_lanes(tl.reshape(word, [1, tile.rows * tile.columns]), 1)
        found = tl.maximum(first, second)
    else:
        first, second = largest_lanes(word, 0)
        found = tl.maximum(first, second)
        found = tl.max(tl.reshape(found, [tile.columns // tile.part, tile.part]), 1)
    return found


@triton.jit
def rounded_down(v, dtype: tl.constexpr):
    """Float32, at least 0 -> the pattern of the largest number of dtype not above it, int32."""
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


@triton.jit
def greater(a, b, dtype: tl.constexpr):
    """Pairs of numbers -> ones in the 16 bits of each first one that is more than the second."""
    if INTERPRETED:
        one, two = apart(a, dtype)
        first, second = apart(b, dtype)
        found = tl.where(one > first, 0xFFFF, 0) | tl.where(two > second, -0x10000, 0)
    elif dtype == tl.bfloat16:
        found = tl.inline_asm_elementwise(
            "set.gt.u32.bf16x2 $0, $1, $2;", "=r,r,r", [a, b], tl.int32, True, 1
        )
    else:
        found = tl.inline_asm_elementwise(
            "set.gt.u32.f16x2 $0, $1, $2;", "=r,r,r", [a, b], tl.int32, True, 1
        )
    return found


@triton.jit
def spread_pairs(v, tile: tl.constexpr):
    """One number a unit -> what broadcasts with the first of each pair, and with the second."""
    if tile.kind == "column":
        first, second = tl.split(tl.reshape(v, [tile.columns, 2]))
        first, second = first[None, :], second[None, :]
    else:
        first = spread(v, tile)
        second = first
    return first, second


@triton.jit
def widened(pattern, dtype: tl.constexpr):
    """Patterns of bfloat16 or float16, int32 -> the bits of the same numbers in float32."""
    if dtype == tl.bfloat16:
        bits = pattern << 16
    else:
        bits = bits_of(half_float(pattern))
    return bits


@triton.jit
def together_as(first, second, dtype: tl.constexpr):
    """Two float32 -> a pair of bfloat16 or float16, to nearest even."""
    if INTERPRETED:
        first, second = narrow(first, dtype), narrow(second, dtype)
        first, second = first.to(tl.int16, bitcast=True), second.to(tl.int16, bitcast=True)
        word = (first.to(tl.int32) & 0xFFFF) | (second.to(tl.int32) << 16)
    elif dtype == tl.bfloat16:
        word = tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [first, second], tl.int32, True, 1
        )
    else:
        word = tl.inline_asm_elementwise(
            "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", [first, second], tl.int32, True, 1
        )
    return word


@triton.constexpr_function
def narrows(dtype, settled, spec):
    """How pairs become codes without being taken apart, as lanes_asm.py says, or ""."""
    meant = not INTERPRETED.value and dtype == tl.bfloat16 and settled
    return spec.narrowing[0] if meant else ""


@triton.jit
def narrowed(word, first, first_2, second, second_2, spec: tl.constexpr):
    """Pairs of bfloat16 -> pairs of codes, bytes or int32.

    first, second and those of second numbers: what `spec.narrowing` takes, of which the upper 16
    bits count: a power of two that they are multiplied by, float32, or what `powers.turns` found
    """
    how: tl.constexpr = spec.narrowing[0]
    asm: tl.constexpr = spec.narrowing[1]
    one = tl.broadcast_to(upper(bits_of(first), bits_of(first_2)), word.shape)
    if how == "bytes":
        found = tl.inline_asm_elementwise(asm, "=r,r,r,r,r,r,r,r,r", [word, one], tl.uint8, True, 4)
    elif how == "powers":
        two = tl.broadcast_to(upper(second, second_2), word.shape)
        found = tl.inline_asm_elementwise(
            asm, "=r,r,r,r,r,r,r,r,r,r,r,r,r", [word, one, two], tl.uint8, True, 4
        )
    else:
        found = tl.inline_asm_elementwise(asm, "=r,r,r", [word, one], tl.int32, True, 1)
    return found


@triton.jit
def signed_nibbles(word, first, second):
    """Pairs, and magnitude codes of three bits with nothing up to bit 15 -> bytes of codes."""
    asm: tl.constexpr = SIGNED
    return tl.inline_asm_elementwise(
        asm, "=r,r,r,r,r,r,r,r,r,r,r,r,r", [word, first, second], tl.uint8, True, 4
    )


@triton.jit
def upper(first, second):
    """The upper 16 bits of both, those of the first below."""
    return ((first >> 16) & 0xFFFF) | (second & -0x10000)
