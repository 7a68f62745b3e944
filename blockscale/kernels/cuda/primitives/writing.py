# SPDX-License-Identifier: BSD-3-Clause
"""Codes and values of a tile -> memory.

out: a pointer to uint8, int8 or int16 codes, or to values; Triton bitcasts it where it stores wider
words. A `tile` is not in pairs here, whatever it reads.
"""

import triton
import triton.language as tl

from blockscale.kernels.cuda.device.codes import stored_bits
from blockscale.kernels.cuda.device.lanes import takes_pairs
from blockscale.kernels.cuda.device.numerics import narrow, widen
from blockscale.kernels.cuda.device.signs import (
    packed_sign_pairs,
    packed_signs,
    sign_pairs,
    sign_values,
)
from blockscale.kernels.cuda.device.tile import (
    codes_per_group,
    join_neighbours,
    locate,
    offsets,
    store_packed,
)

NEIGHBOURS: tl.constexpr = tl.constexpr(8)  # of two bytes each, which one instruction moves


@triton.jit
def write_codes(target, code, spec: tl.constexpr, tile: tl.constexpr):
    """Codes int32 [rows, columns] -> memory, packed if tile.packs. target: an encoding.Target"""
    if tile.packs:
        bits: tl.constexpr = spec.element.bits
        word = join_neighbours(code, tile.rows, tile.columns, bits)
        place = locate(tile, target.extents, codes_per_group(bits))
        side: tl.constexpr = NEIGHBOURS if tile.kind == "row" else tile.side
        store_packed(target.out, place, word, bits, side, tile)
    else:
        out = target.out
        tl.store(out + target.at, code.to(out.dtype.element_ty), mask=target.mask)


@triton.jit
def write_pairs(target, word, spec: tl.constexpr, tile: tl.constexpr):
    """Pairs of codes or values, as codes.codes_of_pairs makes them -> memory.

    target: an encoding.Target, whose `at` counts pairs
    """
    out, at, mask = target.out, target.at, target.mask
    bits: tl.constexpr = stored_bits(spec, tile)
    if bits == 4:
        tl.store(out + at, word.to(tl.uint8), mask=mask)
    elif bits == 8:
        tl.store(out.to(tl.pointer_type(tl.int16), bitcast=True) + at, word.to(tl.int16), mask=mask)
    elif bits == 16:
        tl.store(out.to(tl.pointer_type(tl.int32), bitcast=True) + at, word, mask=mask)
    else:
        place = locate(tile, target.extents, codes_per_group(bits))
        side: tl.constexpr = NEIGHBOURS if tile.kind == "row" else tile.side
        store_packed(out, place, word, bits, side, tile)


@triton.jit
def write_signs(target, x, step, dtype: tl.constexpr, spec: tl.constexpr, tile: tl.constexpr):
    """Elements or pairs that are compared (signs.py) -> their codes or values in memory.

    target: an encoding.Target; step: float32 [units]; dtype: of the elements
    """
    out = target.out
    kind: tl.constexpr = out.dtype.element_ty
    if takes_pairs(dtype, tile) and tile.result == "values":
        as_read: tl.constexpr = tile.in_pairs
        write_pairs(target, sign_pairs(x, step, dtype, spec, as_read), spec, tile)
    elif tile.result == "values":
        at = out + target.at
        tl.store(at, narrow(sign_values(widen(x), step, spec, tile), kind), mask=target.mask)
    else:
        if takes_pairs(dtype, tile):
            word = packed_sign_pairs(x, step, dtype, spec, tile)
        else:
            word = packed_signs(widen(x), step, spec, tile)
        per: tl.constexpr = codes_per_group(spec.element.bits)
        place = locate(tile, target.extents, per)
        side: tl.constexpr = NEIGHBOURS if tile.kind == "row" else tile.side
        at = offsets(place.start // per, place.j, side // per)
        tl.store(out + at, word.to(kind), mask=place.mask)
