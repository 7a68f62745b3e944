"""The kernels that read codes, and those that pack and unpack them for their own sake."""

import triton
import triton.language as tl

from blockscale.kernels.cuda.device.element import decode, hardware
from blockscale.kernels.cuda.device.numerics import narrow
from blockscale.kernels.cuda.device.scale import load_scale
from blockscale.kernels.cuda.device.tile import (
    load_packed,
    load_ragged,
    locate,
    offsets,
    spread,
    together,
)


@triton.jit
def decode_tile(
    packed, out, scale, outer, zero, outer_count, size,
    numbers,
    spec: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """Packed codes in rows of `size` -> values."""
    start, j, mask, index, present = locate(tile, numbers, 1)
    element: tl.constexpr = spec.element
    bits: tl.constexpr = element.bits
    side: tl.constexpr = one_instruction(out.dtype.element_ty)  # for codes, too: no others ask
    kind: tl.constexpr = hardware(element, "nearest_even")
    at = offsets(start, j, side)
    if bits == 8 or bits == 16:
        code = tl.load(packed + at, mask=mask, other=0, eviction_policy="evict_first")
    elif tile.packs:
        begin, place, kept, _, _ = locate(tile, numbers, together(bits))
        code = load_packed(packed, begin, place, kept, bits, side, tile)
    else:
        code = load_ragged(packed, start, j, mask, bits, size)
    _, step, _, offset = load_scale(scale, outer, zero, index, present, index % outer_count, spec)
    if kind is not None:
        value = code.to(kind, bitcast=True).to(tl.float32)
    else:
        value = decode(code.to(tl.int32), element)
    if spec.asym:
        value = value - spread(offset, tile).to(tl.float32)
    value = value * spread(step, tile)
    value = narrow(value, out.dtype.element_ty)
    tl.store(out + at, value, mask=mask, cache_modifier=".cs")


@triton.constexpr_function
def one_instruction(dtype):
    """How many numbers one instruction moves."""
    return 128 // dtype.primitive_bitwidth


@triton.jit
def pack_row(codes, packed, count, size, bits: tl.constexpr, columns: tl.constexpr):
    """One code an entry in rows of `size` -> bit streams; `count` bytes in all (section 6)."""
    byte = tl.program_id(0).to(tl.int64) * columns + tl.arange(0, columns)
    width = (size * bits + 7) // 8
    row, at = byte // width, byte % width
    first = at * 8 // bits
    word = tl.zeros([columns], tl.int32)
    for i in tl.static_range((2 * bits + 6) // bits):  # as many codes as may reach into a byte
        column = first + i
        shift = (column * bits - at * 8).to(tl.int32)
        there = (byte < count) & (column < size) & (shift < 8)
        code = tl.load(codes + row * size + column, mask=there, other=0).to(tl.int32)
        code = code & ((1 << bits) - 1)
        word |= tl.where(shift >= 0, code << tl.maximum(shift, 0), code >> tl.maximum(-shift, 0))
    tl.store(packed + byte, word.to(tl.uint8), mask=byte < count)


@triton.jit
def unpack_row(
    packed, codes, count, size, bits: tl.constexpr, kind: tl.constexpr, columns: tl.constexpr
):
    """Bit streams -> one code an entry, `count` in all; kind: how a pattern is read."""
    index = tl.program_id(0).to(tl.int64) * columns + tl.arange(0, columns)
    start, j = index, tl.zeros([1], tl.int64)
    mask = (index < count)[:, None]
    code = load_ragged(packed, start, j, mask, bits, size)
    code = code & ((1 << bits) - 1)
    if kind == "signed":
        code = (code << (32 - bits)) >> (32 - bits)
    elif kind == "binary":
        code = 2 * code - 1
    tl.store(codes + index[:, None], code.to(codes.dtype.element_ty), mask=mask)
