# SPDX-License-Identifier: BSD-3-Clause
"""How a tensor's blocks are laid over programs: a Tiling for each shape and block.

Most tensors with a block are one of [batch, m, k] with blocks [bm, bk] over m and k, because the
dimensions beside a block's merge: its Blocks. Where they do not, blocks are boxes: over k, and over
several dimensions before it, whose places in a block are its rows. A program takes a tile of units,
which are parts of blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import gcd, prod
from typing import NamedTuple

from blockscale.core.block import WHOLE, Block
from blockscale.kernels.cuda.device.lanes import NO_NARROWING, Narrowing
from blockscale.kernels.numbers import merged

LARGEST = 32768  # elements of a block that one program holds in registers
SMALL = 512  # elements of a unit of one row of which a program takes several


@dataclass(frozen=True)
class Tile:
    """What a primitive's kernel is compiled for beside a format. Frozen and hashable.

    kind:    "row", "column" or "rectangle": how units lie in the tile (device/tile.py)
    rows, columns: elements of the tile
    part:    columns of a unit; in kind "row" all of them
    even:    units follow one another, full ones but for the last
    vector:  a power of two that divides where units begin and end
    modulus: whether several batches share scales
    side:    neighbours that a thread takes at most; 0: as many as one instruction moves
    packs:   codes are packed as they are written, or unpacked as they are read
    chooses: the kernel chooses scales
    keeps:   it also writes them
    result:  "codes", "values", "gradient" or "scale": what it writes; "decode", "rest", "errors",
             "largest" and "extremes" are other kernels' results
    seeds:   how many numbers the seed has, 0 without one
    quads:   four neighbours may share a counter of random numbers
    pairs:   neighbours of 16 bits are taken two and two
    narrowing: how pairs of ordinary blocks become codes without being split
    outers:  rows of scales have outer scales of their own; else there is one for all
    box:     for each dimension before k, the last one first, the size of a block, or 0 where it is
             that of the dimension, and whether last blocks are partial; None where blocks are no
             boxes
    """

    kind: str
    rows: int
    columns: int
    part: int
    even: bool
    vector: int
    modulus: bool
    side: int = 0
    packs: bool = False
    chooses: bool = False
    keeps: bool = False
    result: str = ""
    seeds: int = 0
    quads: bool = False
    pairs: bool = False
    narrowing: Narrowing = NO_NARROWING
    outers: bool = False
    box: tuple[tuple[int, bool], ...] | None = None

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, each.name) for each in fields(self)))

    def __hash__(self) -> int:
        return self._hash  # Triton asks at each launch

    @cached_property
    def in_pairs(self) -> "Tile":
        """The same with columns that are pairs."""
        part, side = max(self.part // 2, 1), self.side // 2
        return replace(self, columns=self.columns // 2, part=part, side=side)


@dataclass(frozen=True)
class BlockedMatrix:
    """A tensor as [batch, m, k] with blocks [bm, bk].

    modulus: rows of scales, where batches share them; else 0
    before:  of boxes, (size, size of a block) of each dimension before k, the last one first: then
             m and bm are the products of these; else None
    """

    batch: int
    m: int
    k: int
    bm: int
    bk: int
    modulus: int = 0
    before: tuple[tuple[int, int], ...] | None = None


def blocks_of(shape: Sequence[int], block: Block) -> BlockedMatrix:
    """The Blocks of a tensor of `shape`, none of whose sizes is 0."""
    sizes = block.sizes_for(len(shape))
    if block.name.startswith("block"):
        return _any_sizes(*merged(shape, sizes))
    split_dims = [i for i, (n, b) in enumerate(zip(shape, sizes, strict=True)) if b != WHOLE]
    if not split_dims:
        return BlockedMatrix(1, 1, prod(shape), 1, prod(shape))
    if block.rest == WHOLE:  # channelA
        return _channel(shape, split_dims[0])
    along = [i for i, b in enumerate(sizes) if b != 1]  # few, and the last ones of a tile
    if not along:
        return BlockedMatrix(1, prod(shape), 1, 1, 1)
    first, last = along[0], along[-1]
    bm = sizes[first] if first != len(shape) - 1 else 1
    if last == len(shape) - 1:
        k = shape[-1]
        bk = k if sizes[-1] == WHOLE else min(sizes[-1], k)
        m = shape[-2] if len(shape) > 1 and bm > 1 else prod(shape[:-1])
        return BlockedMatrix(prod(shape[:-1]) // m, m, k, min(bm, m), bk)
    return BlockedMatrix(
        prod(shape[:first]), shape[first], prod(shape[first + 1 :]), min(bm, shape[first]), 1
    )


def _any_sizes(shape: tuple[int, ...], sizes: tuple[int, ...]) -> BlockedMatrix:
    """Of a tensor whose dimensions are merged (kernels.blocks), in blocks of `sizes`."""
    *before, (k, bk) = list(zip(shape, sizes, strict=True)) or [(1, 1)]
    m, bm = prod(n for n, _ in before), prod(size for _, size in before)
    boxes = BlockedMatrix(1, m, k, bm, bk, before=tuple(reversed(before)))
    if bm == 1:  # small units of awkward sizes are boxes of one row
        follow = k % bk == 0 and bk & (bk - 1) == 0
        return BlockedMatrix(1, m, k, 1, bk) if follow or bk > SMALL else boxes
    (n, size), (last, of_last) = before[0], before[-1]
    if len(before) == 1:
        return BlockedMatrix(1, m, k, bm, bk)
    return BlockedMatrix(n, last, k, of_last, bk) if len(before) == 2 and size == 1 else boxes


def _channel(shape: Sequence[int], dim: int) -> BlockedMatrix:
    outer, n, inner = prod(shape[:dim]), shape[dim], prod(shape[dim + 1 :])
    if inner == 1:
        return BlockedMatrix(1, outer, n, outer, 1)
    return BlockedMatrix(1, outer * n, inner, 1, inner, n if outer > 1 else 0)


class Extents(NamedTuple):
    """The sizes that kernels take with a Tile; those that its kind does not need are 0 or 1.

    units: of the whole tensor, in kind "row"
    m, k: the last two dimensions of the tensor
    bm, bk: of a block
    um, uk: of a unit
    rm, rk: how many units a block has along m and along k
    across: tiles beside one another along k, in kinds "column" and "rectangle"
    nm, nk: how many blocks there are along m and along k
    modulus: rows of scales, where batches share them; else 1
    """

    units: int
    m: int
    k: int
    bm: int
    bk: int
    um: int
    uk: int
    rm: int
    rk: int
    across: int
    nm: int
    nk: int
    modulus: int


class BoxExtents(NamedTuple):
    """The sizes that kernels take with a Tile of boxes.

    units: of the whole tensor that have the same rows of their blocks
    n, b, blocks: of each dimension before k, the last one first, its size, that of a block, and
                  how many blocks there are along it
    k, bm, bk, um, uk, rm, rk, nk: as in Extents; bm is the product of b
    """

    units: int
    n: tuple[int, ...]
    b: tuple[int, ...]
    blocks: tuple[int, ...]
    k: int
    bm: int
    bk: int
    um: int
    uk: int
    rm: int
    rk: int
    nk: int


@dataclass(frozen=True)
class Tiling:
    """A Tile, how many programs take one each, and the Extents that they take with it."""

    tile: Tile
    programs: int
    extents: Extents | BoxExtents


def tiling(at: BlockedMatrix, elements: int, *, whole: bool, unit: int = 1024) -> Tiling | None:
    """Tiles of about `elements` elements, in units of at most about `unit` elements.

    whole: units are whole blocks, of any size; None if these are too large for a program
    """
    if whole and (at.modulus or _padded(at.bm) * _padded(at.bk) > LARGEST):
        return None
    if at.bm == 1 and at.before is None:
        return _rows(at, elements, at.bk if whole else min(at.bk, _fitting(at.bk, unit)))
    return _tiles(at, elements, whole, unit)


def _rows(at: BlockedMatrix, elements: int, uk: int) -> Tiling:
    """Units of uk along k, side by side in memory."""
    columns = _padded(uk)
    parts, blocks = _ceil(at.bk, uk), _ceil(at.k, at.bk)
    units = at.batch * at.m * blocks * parts
    rows = min(max(1, elements // columns), _padded(units))
    tile = Tile(
        "row", rows, columns, columns,
        even=at.k % at.bk == 0 and at.bk % uk == 0 and uk == columns,
        vector=gcd(at.k, at.bk, uk, 16),
        modulus=bool(at.modulus),
    )  # fmt: skip
    extents = Extents(
        units=units, m=at.m, k=at.k, bm=1, bk=at.bk, um=1, uk=uk, rm=1, rk=parts, across=1, nm=1,
        nk=blocks, modulus=max(at.modulus, 1),
    )  # fmt: skip
    return Tiling(tile, _ceil(units, rows), extents)


def _fitting(size: int, unit: int) -> int:
    """A unit of a large block: a power of two that divides it, or one that wastes little."""
    return next((u for u in (unit, unit // 2, unit // 4) if size % u == 0), unit)


def _tiles(at: BlockedMatrix, elements: int, whole: bool, unit: int) -> Tiling:
    """Units side by side along k, and programs above one another."""
    um = at.bm if whole else min(at.bm, unit // 32)
    uk = at.bk if whole else min(at.bk, 128)
    rows, part = _padded(um), _padded(uk)
    side = max(2, min(8, 64 // rows)) if part == 1 else min(part, max(4, min(8, 64 // rows)))
    kind = "column" if part == 1 else "rectangle"
    if at.before is not None:
        return _boxes(at, elements, um, uk, Tile(kind, rows, part, part, False, 1, False, side))
    rm, rk = _ceil(at.bm, um), _ceil(at.bk, uk)
    nm, nk = _ceil(at.m, at.bm), _ceil(at.k, at.bk)
    count = min(max(1, elements // (rows * part)), _padded(nk * rk))
    even = at.bk % part == 0 and uk == part and (rk == 1 or at.k == at.bk)
    tile = Tile(kind, rows, count * part, part, even, 1, False, side)
    across = _ceil(nk * rk, count)
    extents = Extents(
        units=0, m=at.m, k=at.k, bm=at.bm, bk=at.bk, um=um, uk=uk, rm=rm, rk=rk, across=across,
        nm=nm, nk=nk, modulus=1,
    )  # fmt: skip
    return Tiling(tile, at.batch * nm * rm * across, extents)


def _boxes(at: BlockedMatrix, elements: int, um: int, uk: int, one: Tile) -> Tiling:
    """Units in the order of their scales. one: the Tile of one unit, of um rows and uk columns"""
    before = at.before or ()
    counts = [_ceil(n, size) for n, size in before]
    rm, rk, nk = _ceil(at.bm, um), _ceil(at.bk, uk), _ceil(at.k, at.bk)
    units = prod(counts) * nk * rk
    several = min(max(1, elements // (one.rows * one.part)), _padded(units))
    full = uk == one.part and at.bk % uk == 0 and at.k % at.bk == 0
    beside = gcd(several, nk * rk) if full else 0  # in memory, and never in two rows of units
    even = beside * one.part >= min(several * one.part, 64)
    several = beside if even else several
    fits = several if one.part == 1 else gcd(at.bk, uk)
    tile = replace(
        one,
        columns=several * one.part,
        even=even,
        vector=gcd(several * one.part if even else fits, at.k, 16),
        box=tuple((size if size < n else 0, n % size != 0) for n, size in before),
    )
    extents = BoxExtents(
        units=units, n=tuple(n for n, _ in before) or (1,),  # no kernel takes an empty tuple
        b=tuple(size for _, size in before) or (1,), blocks=tuple(counts) or (1,),
        k=at.k, bm=at.bm, bk=at.bk, um=um, uk=uk, rm=rm, rk=rk, nk=nk,
    )  # fmt: skip
    return Tiling(tile, rm * _ceil(units, several), extents)


def packs(at: BlockedMatrix, tile: Tile, uk: int, bits: int, last: int) -> bool:
    """Whether codes of `bits` bits in rows of `last` fill whole bytes within each unit.

    uk: columns of a unit (Extents)
    """
    together = {1: 8, 2: 4, 4: 2, 6: 16}.get(bits)  # as device.tile.codes_per_group
    if together is None or last % together:
        return False
    if tile.kind == "column":
        return tile.columns % together == 0
    return tile.part % together == 0 and uk % together == 0 and at.bk % together == 0


def groups(at: BlockedMatrix, tile: Tile, uk: int, size: int) -> bool:
    """Whether `size` neighbours, the first at a multiple of `size`, share a unit, or a row of units
    that are columns. uk: columns of a unit (Extents)"""
    if at.k % size:
        return False
    if tile.kind == "column":
        return tile.columns % size == 0
    return tile.part % size == 0 and uk % size == 0 and at.bk % size == 0


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _padded(n: int) -> int:
    """The next power of two."""
    return 1 << max(n - 1, 0).bit_length()
