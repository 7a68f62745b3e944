# SPDX-License-Identifier: BSD-3-Clause
"""Which kernel multiplies, and what it is compiled for."""

from functools import cache
from typing import NamedTuple

FEW = 4  # rows that are multiplied where a weight is decoded
_STAGED = 1024  # quads of the left factor that a workgroup has at hand, of four numbers each
_BUSY = 512  # workgroups that keep a large GPU busy


class Plan(NamedTuple):
    """kernel: its name; constants: what it is compiled for; sizes: what its launch adds."""

    kernel: str
    constants: tuple[tuple[str, int], ...]
    sizes: dict[str, int]
    groups: int


@cache
def plan(batches: int, rows: int, outputs: int, inner: int, chunk: str, quads: int) -> Plan:
    """How to multiply [batches, rows, inner] and [outputs, inner].

    chunk, quads: how few rows read the right factor ("" if they cannot), and how many fours of its
        columns a lane does at once
    """
    if chunk and rows <= FEW:
        return _few(rows, outputs, inner, quads)
    return _many(batches, rows, outputs)


def _few(rows: int, outputs: int, inner: int, quads: int) -> Plan:
    together = 1 << (rows - 1).bit_length()
    room = _STAGED // (together * quads)
    team = min(32, room)
    while team * 2 <= min(256, room) and _splits(team * 2, outputs, inner, quads):
        team *= 2
    tiles = max(room // team, 1)
    columns = -(-outputs // (4 * (256 // team)))
    constants = (("ROWS", together), ("TEAM", team), ("TILES", tiles))
    return Plan("few_rows", constants, {"column_groups": columns}, columns * -(-rows // together))


def _splits(team: int, outputs: int, inner: int, quads: int) -> bool:
    """Whether teams of so many lanes all have work, and the GPU without them too little."""
    few = -(-outputs // (4 * (512 // team))) < _BUSY
    return few and team * quads * 4 <= inner


def _many(batches: int, rows: int, outputs: int) -> Plan:
    tile_rows, side = 16, 1  # by 256 outputs
    if rows > 32:
        tile_rows, side = 64, 1  # by 64
    if rows > 64 and batches * -(-rows // 128) * -(-outputs // 128) >= _BUSY // 4:
        tile_rows, side = 128, 2  # by 128
    tile_outputs = 256 // (tile_rows // (4 * side)) * 4 * side
    columns = -(-outputs // tile_outputs)
    tiles = columns * -(-rows // tile_rows)
    constants = (("TILE_ROWS", tile_rows), ("SIDE", side))
    sizes = {"column_groups": columns, "tiles": tiles, "batches": batches}
    return Plan("many_rows", constants, sizes, tiles * batches)
