"""Where a program's elements and scales lie, and how codes go to and from memory.

A tensor is seen as [batch, m, k] with blocks [bm, bk] over its last two dimensions (view.py), and
a program takes a tile [rows, columns] of it, in units: parts of blocks, and whole ones where it
chooses their scale. `tile` is a view.Tile:

    tile.kind "row"     one unit a row of the tile, along k; bm = 1
    tile.kind "column"  one unit a column of the tile, along m; bk = 1
    tile.kind "tile"    columns / part units side by side, each [rows, part]
"""

import triton
import triton.language as tl


@triton.jit
def locate(tile: tl.constexpr, numbers, step: tl.constexpr):
    """This program's part of the tensor, with `step` neighbouring elements a column.

    Returns the index of each row's first element, int64 [rows]; each column's place in a row of k,
    in steps [columns / step]; which of them exist [rows, columns / step]; and for each unit the
    index of its scale, int64, and whether it exists.
    """
    if tile.kind == "row":
        start, j, mask, index, present = _units_in_rows(tile, numbers, step)
    else:
        start, j, mask, index, present = _units_in_columns(tile, numbers, step)
    return start, j, mask, index, present


@triton.jit
def _units_in_rows(tile: tl.constexpr, numbers, step: tl.constexpr):
    units, _, k, _, bk, _, uk, _, rk, _, _, nk, modulus = numbers
    vector: tl.constexpr = tile.vector
    j = tl.arange(0, tile.columns // step)
    unit = tl.program_id(0).to(tl.int64) * tile.rows + tl.arange(0, tile.rows)
    present = unit < units
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
        mask = (j * step)[None, :] < tl.multiple_of(limit, [vector])[:, None]
    if tile.modulus:
        index = (index // nk) % modulus * nk + index % nk
    return start, j, mask, index, present


@triton.jit
def _units_in_columns(tile: tl.constexpr, numbers, step: tl.constexpr):
    _, m, k, bm, bk, um, uk, rm, rk, across, nm, nk, _ = numbers
    program = tl.program_id(0).to(tl.int64)
    strip, column = program // across, program % across
    i = tl.arange(0, tile.rows)
    batch, rest = strip // (nm * rm), strip % (nm * rm)
    block, part = rest // rm, rest % rm
    row = block * bm + part * um + i
    start = (batch * m + row) * k
    unit = column * (tile.columns // tile.part) + tl.arange(0, tile.columns // tile.part)
    present = unit < nk * rk
    index = (batch * nm + block) * nk + unit // rk
    if tile.even:
        j = column * (tile.columns // step) + tl.arange(0, tile.columns // step)
        fits = j < k // step  # rows are full where `step` is not 1
    else:
        within = (unit % rk)[:, None] * uk + (tl.arange(0, tile.part // step) * step)[None, :]
        place = (unit // rk * bk)[:, None] + within
        fits = (within - (unit % rk * uk)[:, None] < uk) & (within < bk) & (place < k)
        j = tl.reshape(place // step, [tile.columns // step])
        fits = tl.reshape(fits, [tile.columns // step])
    rows = (i < um) & (part * um + i < bm) & (row < m)
    mask = rows[:, None] & fits[None, :]
    return start, j, mask, index, present


@triton.jit
def offsets(start, j, neighbours: tl.constexpr):
    """Of rows and columns as `locate` has them -> where elements lie, int64 [rows, columns].

    Triton gives a thread as many neighbours as it knows to lie side by side, up to 16 bytes of
    what it stores; `neighbours`, a power of two, says fewer. Where a unit has rows that leaves a
    thread whole columns, which need no other thread to reduce, and few scales to compute.
    """
    at = start[:, None] + j[None, :]
    if neighbours > 1:  # Triton takes a 1 as a reason to go down the columns
        at = tl.max_contiguous(at, [1, neighbours])
    return at


@triton.jit
def spread(v, tile: tl.constexpr):
    """One number a unit -> one that broadcasts with the tile."""
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
    """The "largest" or the "total" along an axis; of integers, whose order does not matter."""
    if how == "largest":
        found = tl.max(x, axis)
    else:
        found = tl.sum(x, axis)
    return found


@triton.jit
def reduced(x, how: tl.constexpr, tile: tl.constexpr):
    """The "largest" or the "total" of each unit of the tile."""
    if tile.kind == "row":
        found = along(x, 1, how)
    elif tile.part == tile.columns and tile.columns > 1:  # one unit: threads meet once
        found = along(tl.reshape(x, [1, tile.rows * tile.columns]), 1, how)
    else:
        found = along(x, 0, how)
        if tile.part > 1:
            found = along(tl.reshape(found, [tile.columns // tile.part, tile.part]), 1, how)
    return found


@triton.jit
def pairs(code, rows: tl.constexpr, columns: tl.constexpr, bits: tl.constexpr):
    """Codes [rows, columns] -> two of them in the low bits of each int32 [rows, columns / 2]."""
    even, odd = tl.split(tl.reshape(code, [rows, columns // 2, 2]))
    return (even & ((1 << bits) - 1)) | (odd << bits)


@triton.constexpr_function
def together(bits):
    """How many codes fill whole bytes, or whole words of 32 bits where they have 6 bits."""
    return {1: 8, 2: 4, 4: 2, 6: 16}.get(bits, 1)


@triton.jit
def store_packed(
    out, start, j, mask, word, bits: tl.constexpr, neighbours: tl.constexpr, tile: tl.constexpr
):
    """`pairs` of codes of 1, 2, 4 or 6 bits -> bytes, as section 6 packs them.

    start, j, mask: of `locate` with the step that `together` says; neighbours: codes of a thread
    """
    if bits != 4:
        word = pairs(word, tile.rows, tile.columns // 2, 2 * bits)
    if bits == 1:
        word = pairs(word, tile.rows, tile.columns // 4, 4)
    if bits == 6:  # four times 24 bits are three words
        even, odd = tl.split(tl.reshape(word, [tile.rows, tile.columns // 8, 2]))
        even, odd = even & 0xFFFFFF, odd & 0xFFFFFF
        a, c = tl.split(tl.reshape(even, [tile.rows, tile.columns // 16, 2]))
        b, d = tl.split(tl.reshape(odd, [tile.rows, tile.columns // 16, 2]))
        words = out.to(tl.pointer_type(tl.int32), bitcast=True)
        place = words + (start // 16 * 3)[:, None] + (j * 3)[None, :]
        tl.store(place, a | (b << 24), mask=mask)
        tl.store(place + 1, (b >> 8) | (c << 16), mask=mask)
        tl.store(place + 2, (c >> 16) | (d << 8), mask=mask)
    else:
        place = out + offsets(start // together(bits), j, neighbours // together(bits))
        tl.store(place, word.to(tl.uint8), mask=mask)


@triton.jit
def load_packed(
    packed, start, j, mask, bits: tl.constexpr, neighbours: tl.constexpr, tile: tl.constexpr
):
    """What `store_packed` stored -> codes int32 [rows, columns], with others above their bits.

    start, j, mask: of `locate` with the step that `together` says; neighbours: codes of a thread
    """
    if bits == 6:
        words = packed.to(tl.pointer_type(tl.int32), bitcast=True)
        place = words + (start // 16 * 3)[:, None] + (j * 3)[None, :]
        first = tl.load(place, mask=mask, other=0)
        second = tl.load(place + 1, mask=mask, other=0)
        third = tl.load(place + 2, mask=mask, other=0)
        b = ((first >> 24) & 0xFF) | (second << 8)
        c = ((second >> 16) & 0xFFFF) | (third << 16)
        code = tl.join(tl.join(first, c), tl.join(b, third >> 8))
        code = tl.reshape(code, [tile.rows, tile.columns // 4])
    else:
        place = packed + offsets(start // together(bits), j, neighbours // together(bits))
        code = tl.load(place, mask=mask, other=0).to(tl.int32)
    if bits == 1:
        code = tl.reshape(tl.join(code, code >> 4), [tile.rows, tile.columns // 4])
    if bits != 4:
        code = tl.reshape(tl.join(code, code >> (2 * bits)), [tile.rows, tile.columns // 2])
    return tl.reshape(tl.join(code, code >> bits), [tile.rows, tile.columns])


@triton.jit
def load_ragged(packed, start, j, mask, bits: tl.constexpr, size):
    """Codes of any width from rows of `size` that may end within a byte: int32 [rows, columns]."""
    flat = start[:, None] + j[None, :]
    row, column = flat // size, flat % size
    at = packed + row * ((size * bits + 7) // 8) + (column * bits) // 8
    offset = ((column * bits) % 8).to(tl.int32)
    code = tl.load(at, mask=mask, other=0).to(tl.int32)
    for byte in tl.static_range(1, (bits + 14) // 8):
        further = mask & (offset + bits > 8 * byte)
        code |= tl.load(at + byte, mask=further, other=0).to(tl.int32) << (8 * byte)
    return code >> offset
