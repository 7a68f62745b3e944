# SPDX-License-Identifier: BSD-3-Clause
"""The kernels that read codes, and those that pack and unpack them for their own sake.

Words and shapes are explained in blockscale/kernels/cuda/device/__init__.py.
"""

import triton
import triton.language as tl

from blockscale.kernels.cuda.device.element import decode, hardware
from blockscale.kernels.cuda.device.numerics import narrow, widen
from blockscale.kernels.cuda.device.scale import load_scale
from blockscale.kernels.cuda.device.tile import (
    codes_per_group,
    expand,
    load_packed,
    load_ragged,
    locate,
    offsets,
)


@triton.jit
def decode_tile(
    packed, out, scale, outer, zero, offset, outer_count, size,
    extents,
    spec: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """Packed codes -> values, or what bfloat16 leaves of them.

    packed: uint8, int8 or int16, rows of `size` codes, each row padded to whole bytes
    out: float32, bfloat16 or float16 [batch, m, k], contiguous
    scale: the stored scales of all blocks
    outer: float32, an outer scale for each block, or one for all; None with one level
    zero: int32 or floats, the zero points of all blocks; None where the format has none
    offset: float32, bfloat16 or float16, the offsets of all blocks; None where the format has none
    outer_count: how many outer scales there are; extents: a tiling.Extents
    """
    place = locate(tile, extents, 1)
    element: tl.constexpr = spec.element
    bits: tl.constexpr = element.bits
    side: tl.constexpr = one_instruction(out.dtype.element_ty)  # for codes, too: no others ask
    kind: tl.constexpr = hardware(element, "nearest_even")
    at, mask, index = offsets(place.start, place.j, side), place.mask, place.index
    if bits == 8 or bits == 16:
        code = tl.load(packed + at, mask=mask, other=0, eviction_policy="evict_first")
    elif tile.packs:
        groups = locate(tile, extents, codes_per_group(bits))
        code = load_packed(packed, groups, bits, side, tile)
    else:
        code = load_ragged(packed, place.start, place.j, mask, bits, size)
    above = index % outer_count
    unit = load_scale(scale, outer, zero, offset, index, place.present, above, spec)
    if kind is not None:
        value = code.to(kind, bitcast=True).to(tl.float32)
    else:
        value = decode(code.to(tl.int32), element)
    if spec.asym:
        value = value - expand(unit.zero, tile).to(tl.float32)
    value = scaled(value, unit, spec, tile)
    tl.store(out + at, narrow(value, out.dtype.element_ty), mask=mask, cache_modifier=".cs")


@triton.jit
def scaled(value, unit, spec: tl.constexpr, tile: tl.constexpr):
    """What codes mean in steps, and the Scale of each unit -> values, or what tile.result says."""
    value = value * expand(unit.step, tile)
    if spec.offset != "":
        value = value + expand(unit.offset, tile)
    if tile.result == "rest":
        value = value - widen(narrow(value, tl.bfloat16))
    return value


@triton.constexpr_function
def one_instruction(dtype):
    """How many numbers of dtype one instruction of a thread moves."""
    return 128 // dtype.primitive_bitwidth


@triton.jit
def pack_row(codes, packed, count, size, bits: tl.constexpr, columns: tl.constexpr):
    """One code an entry -> bit streams (docs/numerics.md, section 6).

    codes: uint8 or int16, rows of `size`; bits above a code do not matter
    packed: uint8, `count` bytes, each row padded to whole bytes
    columns: bytes of one program
    """
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
    """Bit streams -> one code an entry.

    packed: uint8, rows of `size` codes, each row padded to whole bytes
    codes: an integer dtype, `count` entries
    kind: "signed", "plain" or "binary": how a bit pattern is read as a number
    columns: codes of one program
    """
    index = tl.program_id(0).to(tl.int64) * columns + tl.arange(0, columns)
    start, j = index, tl.zeros([1], tl.int64)
    mask = (index < count)[:, None]
    code = load_ragged(packed, start, j, mask, bits, size)
    code = code & ((1 << bits) - 1)
    if kind == "signed":
        code = (code << (32 - bits)) >> (32 - bits)
    elif kind == "binary":
        code = 2 * code - 1
    else:
        tl.static_assert(kind == "plain", "unknown kind of codes")
    tl.store(codes + index[:, None], code.to(codes.dtype.element_ty), mask=mask)
