# SPDX-License-Identifier: BSD-3-Clause
"""Where a program's elements and scales lie, and how codes go to and from memory.

A tensor is seen as [batch, m, k] with blocks [bm, bk] over its last two dimensions, and a program
takes a tile [rows, columns] of it, which consists of units. `tile` is a primitives.tiling.Tile and
`extents` the primitives.tiling.Extents that belong to it:

    tile.kind "row"        one unit a row of the tile, along k; bm = 1
    tile.kind "column"     one unit a column of the tile, along m; bk = 1
    tile.kind "rectangle"  columns / part units side by side, each [rows, part]

Blocks that are boxes lie over any number of dimensions before k (`tile.box` has an entry for each):
the rows of a "column" or "rectangle" are then all places of a block along these, and its units
follow one another in the order of their scales.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl


class Place(NamedTuple):
    """Where a program's part of a tensor lies, for columns of `width` neighbouring elements.

    start: int64 [rows], the index of each row's first element
    j: int32 or int64 [columns / width], each column's place in its row, counted in `width` elements
    mask: bool [rows, columns / width], which of them exist
    index: int64 [units], the index of each unit's scale
    present: bool [units], which units exist
    """

    start: Any
    j: Any
    mask: Any
    index: Any
    present: Any


@triton.jit
def locate(tile: tl.constexpr, extents, width: tl.constexpr):
    """This program's Place in the tensor; `width` neighbouring elements make a column."""
    if tile.kind == "row":
        place = _units_in_rows(tile, extents, width)
    elif has_boxes(tile):
        place = _units_in_boxes(tile, extents, width)
    else:
        tl.static_assert(tile.kind == "column" or tile.kind == "rectangle", "unknown kind of tile")
        place = _units_in_columns(tile, extents, width)
    return place


@triton.jit
def _units_in_rows(tile: tl.constexpr, extents, width: tl.constexpr):
    vector: tl.constexpr = tile.vector
    k, bk, uk, rk, nk = extents.k, extents.bk, extents.uk, extents.rk, extents.nk
    j = tl.arange(0, tile.columns // width)
    unit = tl.program_id(0).to(tl.int64) * tile.rows + tl.arange(0, tile.rows)
    present = unit < extents.units
    if tile.even:
        start = unit * tile.columns
        index = unit // rk
        mask = present[:, None] & (j >= 0)[None, :]
    else:
        row, rest = unit // (nk * rk), unit % (nk * rk)
        block, part = rest // rk, rest % rk
        column = block * bk + part * uk
        start = tl.multiple_of(row * k + column, [vector])
        index = row * nk + block
        limit = tl.minimum(tl.minimum(bk - part * uk, k - column), uk)
        limit = tl.where(present, limit, 0).to(tl.int32)
        mask = (j * width)[None, :] < tl.multiple_of(limit, [vector])[:, None]
    if tile.modulus:
        index = (index // nk) % extents.modulus * nk + index % nk
    return Place(start, j, mask, index, present)


@triton.jit
def _units_in_columns(tile: tl.constexpr, extents, width: tl.constexpr):
    m, k, bm, bk, um, uk = extents.m, extents.k, extents.bm, extents.bk, extents.um, extents.uk
    rm, rk, nm, nk = extents.rm, extents.rk, extents.nm, extents.nk
    program = tl.program_id(0).to(tl.int64)
    strip, column = program // extents.across, program % extents.across
    i = tl.arange(0, tile.rows)
    batch, rest = strip // (nm * rm), strip % (nm * rm)
    block, part = rest // rm, rest % rm
    row = block * bm + part * um + i
    start = (batch * m + row) * k
    unit = column * (tile.columns // tile.part) + tl.arange(0, tile.columns // tile.part)
    present = unit < nk * rk
    index = (batch * nm + block) * nk + unit // rk
    if tile.even:
        j = column * (tile.columns // width) + tl.arange(0, tile.columns // width)
        exists = j < k // width  # rows are full where `width` is not 1
    else:
        within = (unit % rk)[:, None] * uk + (tl.arange(0, tile.part // width) * width)[None, :]
        place = (unit // rk * bk)[:, None] + within
        exists = (within - (unit % rk * uk)[:, None] < uk) & (within < bk) & (place < k)
        j = tl.reshape(place // width, [tile.columns // width])
        exists = tl.reshape(exists, [tile.columns // width])
    rows = (i < um) & (part * um + i < bm) & (row < m)
    mask = rows[:, None] & exists[None, :]
    return Place(start, j, mask, index, present)


@triton.constexpr_function
def has_boxes(tile):
    """Whether blocks are boxes."""
    return tile.box is not None


@triton.constexpr_function
def dimensions(tile):
    """How many dimensions before k boxes have."""
    return len(tile.box)


@triton.constexpr_function
def side_of(tile, dimension):
    """How far boxes reach along a dimension before k, or 0 where only its extent says so."""
    return tile.box[dimension][0]


@triton.constexpr_function
def ends_early(tile, dimension):
    """Whether the last boxes along a dimension before k are partial."""
    return tile.box[dimension][1]


@triton.jit
def _divide(v, size):
    """Whole numbers, at least 0 -> their quotients and remainders."""
    quotient = v // size
    return quotient, v - quotient * size


@triton.jit
def _columns_of_boxes(tile: tl.constexpr, width: tl.constexpr):
    """Of each column the unit, counted in the tile, and the column's place in that unit.

    Where units lie side by side, they count as one.
    """
    wide: tl.constexpr = max(tile.part // width, 1)
    c = tl.arange(0, tile.columns // width)
    unit, place = c // wide, c % wide
    if tile.part == 1:  # `width` units in a column
        unit = c * width
    if tile.even:
        unit, place = tl.zeros([], tl.int32), c
    return unit, place


@triton.jit
def _units_in_boxes(tile: tl.constexpr, extents, width: tl.constexpr):
    many: tl.constexpr = tile.columns // tile.part
    whole: tl.constexpr = tile.vector if tile.part > 1 and not tile.even else 1
    vector: tl.constexpr = max(tile.vector // width, 1)
    # as many bits as these numbers need: divisions that loads wait for are slow in 64
    group, strip = _divide(tl.program_id(0) + 0 * extents.units, extents.rm)
    first = group * many
    there = extents.units - first
    unit, place = _columns_of_boxes(tile, width)
    rest, part = _divide(first + unit, extents.rk)
    block = rest
    if dimensions(tile) > 0:
        rest, block = _divide(rest, extents.nk)
    beyond, exists = place * width, place >= 0
    base = tl.multiple_of(block.to(tl.int64) * extents.bk, [whole])
    base += tl.multiple_of(part * extents.uk, [whole])
    if not tile.even:
        exists = (unit < there) & (beyond < extents.uk) & (part * extents.uk + beyond < extents.bk)
        exists = tl.max_constancy(exists & (base + beyond < extents.k), [vector])
    start, j, mask = _before_k(tile, extents, strip, rest, base, width)
    if tile.part > 1 or tile.even:
        j = j + place
    count = tl.arange(0, many)
    index = (first.to(tl.int64) + count) // extents.rk
    return Place(start, j, mask & exists[None, :], index, count < there)


@triton.jit
def _before_k(tile: tl.constexpr, extents, strip, rest, base, width: tl.constexpr):
    """Where rows of boxes begin, int64 [rows]; where the units of columns do, in `width` elements;
    and which rows exist, bool [rows, columns], or [rows, 1] where all columns have the same.

    The compiler is told what holds of them here, because a caller's word for them would be lost.

    strip: which of the parts that the rows of a box have
    rest: the blocks of columns or units, counted without k; base: their places along k
    """
    whole: tl.constexpr = tile.vector
    vector: tl.constexpr = max(tile.vector // width, 1)
    i = tl.arange(0, tile.rows)
    above = (strip + 0 * extents.bm) * extents.um
    mask = ((i < extents.um) & (i < extents.bm - above))[:, None]
    row = above + i
    start, stride = 0 * i.to(tl.int64), tl.zeros([], tl.int64) + extents.k
    for d in tl.static_range(dimensions(tile)):
        size = extents.b[d]
        if side_of(tile, d) > 0:  # a constant: no division
            size = side_of(tile, d)
        place, block = row, rest
        if d < dimensions(tile) - 1:
            row, place = _divide(row, size)
            rest, block = _divide(rest, extents.blocks[d])
        if ends_early(tile, d):
            limit = extents.n[d] - block * size
            if not tile.even:
                limit = tl.max_constancy(limit, [vector])[None, :]
            mask = mask & (place[:, None] < limit)
        start += place * stride
        base += block * (size * stride)
        stride *= extents.n[d]
    if width > 1:
        base = base // width
    base = tl.multiple_of(base, [vector])
    if tile.part == 1 and not tile.even:
        base = tl.max_contiguous(base, [vector])
    return tl.multiple_of(start, [whole]), base, mask


@triton.jit
def offsets(start, j, neighbours: tl.constexpr):
    """Where elements lie: int64 [rows, columns] from a Place's `start` and `j`.

    Triton gives a thread as many neighbours as it knows to lie side by side, up to 16 bytes of
    what it stores; `neighbours`, a power of two, says fewer. Where a unit has several rows that
    leaves a thread whole columns, which need no other thread to reduce, and few scales to compute.
    """
    at = start[:, None] + j[None, :]
    if neighbours > 1:  # Triton takes a 1 as a reason to go down the columns
        at = tl.max_contiguous(at, [1, neighbours])
    return at


@triton.jit
def expand(v, tile: tl.constexpr):
    """[units] -> the same numbers in a shape that broadcasts with [rows, columns]."""
    if tile.kind == "row":
        wide = v[:, None]
    elif tile.part == 1 or tile.part == tile.columns:
        wide = v[None, :]
    else:
        units: tl.constexpr = tile.columns // tile.part
        wide = tl.reshape(tl.broadcast_to(v[:, None], [units, tile.part]), [tile.columns])[None, :]
    return wide


@triton.jit
def along(x, axis: tl.constexpr, how: tl.constexpr):
    """The "largest" or the "total" of integers along an axis, in any order."""
    if how == "largest":
        result = tl.max(x, axis)
    else:
        tl.static_assert(how == "total", "what is reduced is the largest or the total")
        result = tl.sum(x, axis)
    return result


@triton.jit
def reduced(x, how: tl.constexpr, tile: tl.constexpr):
    """Integers [rows, columns] -> the "largest" or the "total" of each unit: [units]."""
    if tile.kind == "row":
        result = along(x, 1, how)
    elif tile.part == tile.columns and tile.columns > 1:  # one unit: threads meet once
        result = along(tl.reshape(x, [1, tile.rows * tile.columns]), 1, how)
    else:
        result = along(x, 0, how)
        if tile.part > 1:
            result = along(tl.reshape(result, [tile.columns // tile.part, tile.part]), 1, how)
    return result


@triton.jit
def join_neighbours(code, rows: tl.constexpr, columns: tl.constexpr, bits: tl.constexpr):
    """Codes [rows, columns] -> two of them in the low bits of each int32 [rows, columns / 2]."""
    even, odd = tl.split(tl.reshape(code, [rows, columns // 2, 2]))
    return (even & ((1 << bits) - 1)) | (odd << bits)


@triton.constexpr_function
def codes_per_group(bits):
    """How many codes of `bits` bits fill a byte, or three words of 32 bits for 6 bits; else 1."""
    return {1: 8, 2: 4, 4: 2, 6: 16}.get(bits, 1)


@triton.jit
def store_packed(
    out, place, word, bits: tl.constexpr, neighbours: tl.constexpr, tile: tl.constexpr
):
    """Codes of 1, 2, 4 or 6 bits -> bytes in memory, as docs/numerics.md, section 6 packs them.

    word: int32 [rows, columns / 2], two codes each (`join_neighbours`)
    place: of `locate` with the width that `codes_per_group` says; neighbours: codes of a thread
    """
    if bits != 4:
        word = join_neighbours(word, tile.rows, tile.columns // 2, 2 * bits)
    if bits == 1:
        word = join_neighbours(word, tile.rows, tile.columns // 4, 4)
    if bits == 6:  # four times 24 bits are three words
        even, odd = tl.split(tl.reshape(word, [tile.rows, tile.columns // 8, 2]))
        even, odd = even & 0xFFFFFF, odd & 0xFFFFFF
        a, c = tl.split(tl.reshape(even, [tile.rows, tile.columns // 16, 2]))
        b, d = tl.split(tl.reshape(odd, [tile.rows, tile.columns // 16, 2]))
        words = out.to(tl.pointer_type(tl.int32), bitcast=True)
        at = words + (place.start // 16 * 3)[:, None] + (place.j * 3)[None, :]
        tl.store(at, a | (b << 24), mask=place.mask)
        tl.store(at + 1, (b >> 8) | (c << 16), mask=place.mask)
        tl.store(at + 2, (c >> 16) | (d << 8), mask=place.mask)
    else:
        per: tl.constexpr = codes_per_group(bits)
        at = out + offsets(place.start // per, place.j, neighbours // per)
        tl.store(at, word.to(tl.uint8), mask=place.mask)


@triton.jit
def load_packed(packed, place, bits: tl.constexpr, neighbours: tl.constexpr, tile: tl.constexpr):
    """What `store_packed` stored -> codes int32 [rows, columns], with others above their bits.

    place: of `locate` with the width that `codes_per_group` says; neighbours: codes of a thread
    """
    if bits == 6:
        words = packed.to(tl.pointer_type(tl.int32), bitcast=True)
        at = words + (place.start // 16 * 3)[:, None] + (place.j * 3)[None, :]
        first = tl.load(at, mask=place.mask, other=0)
        second = tl.load(at + 1, mask=place.mask, other=0)
        third = tl.load(at + 2, mask=place.mask, other=0)
        b = ((first >> 24) & 0xFF) | (second << 8)
        c = ((second >> 16) & 0xFFFF) | (third << 16)
        code = tl.join(tl.join(first, c), tl.join(b, third >> 8))
        code = tl.reshape(code, [tile.rows, tile.columns // 4])
    else:
        per: tl.constexpr = codes_per_group(bits)
        at = packed + offsets(place.start // per, place.j, neighbours // per)
        code = tl.load(at, mask=place.mask, other=0).to(tl.int32)
    if bits == 1:
        code = tl.reshape(tl.join(code, code >> 4), [tile.rows, tile.columns // 4])
    if bits != 4:
        code = tl.reshape(tl.join(code, code >> (2 * bits)), [tile.rows, tile.columns // 2])
    return tl.reshape(tl.join(code, code >> bits), [tile.rows, tile.columns])


@triton.jit
def load_ragged(packed, start, j, mask, bits: tl.constexpr, size):
    """Codes of any width -> int32 [rows, columns]; each row of `size` codes begins at a byte.

    start: int64 [rows], j: [columns], mask: [rows, columns], as a Place has them
    """
    flat = start[:, None] + j[None, :]
    row, column = flat // size, flat % size
    at = packed + row * ((size * bits + 7) // 8) + (column * bits) // 8
    offset = ((column * bits) % 8).to(tl.int32)
    code = tl.load(at, mask=mask, other=0).to(tl.int32)
    for byte in tl.static_range(1, (bits + 14) // 8):
        further = mask & (offset + bits > 8 * byte)
        code |= tl.load(at + byte, mask=further, other=0).to(tl.int32) << (8 * byte)
    return code >> offset
