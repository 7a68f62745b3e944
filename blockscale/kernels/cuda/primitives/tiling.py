"""How a tensor's blocks are laid over programs: a Tiling for each shape and block.

Any tensor with any block is one of [batch, m, k] with blocks [bm, bk] over m and k, because the
dimensions beside a block's merge: its Blocks. A program takes a tile of units, which are parts of
blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import gcd, prod
from typing import NamedTuple

from blockscale.core.block import WHOLE, Block
from blockscale.kernels.cuda.device.lanes_asm import NO_NARROWING, Narrowing

LARGEST = 32768  # elements of a block that one program holds in registers


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
    result:  "codes", "values", "gradient" or "scale": what it writes; "decode", "rest", "largest"
             and "extremes" are other kernels' results
    seeds:   how many numbers the seed has, 0 without one
    quads:   four neighbours may share a counter of random numbers
    pairs:   neighbours of 16 bits are taken two and two
    narrowing: how pairs of ordinary blocks become codes without being split
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
class Blocks:
    """A tensor as [batch, m, k] with blocks [bm, bk].

    modulus: rows of scales, where batches share them; else 0
    """

    batch: int
    m: int
    k: int
    bm: int
    bk: int
    modulus: int = 0


def blocks_of(shape: Sequence[int], block: Block) -> Blocks:
    """The Blocks of a tensor of `shape`, none of whose sizes is 0."""
    sizes = block.sizes_for(len(shape))
    parted = [i for i, (n, b) in enumerate(zip(shape, sizes, strict=True)) if b != WHOLE]
    if not parted:
        return Blocks(1, 1, prod(shape), 1, prod(shape))
    if block.rest == WHOLE:  # channelA
        return _channel(shape, parted[0])
    along = [i for i, b in enumerate(sizes) if b != 1]  # few, and the last ones of a tile
    if not along:
        return Blocks(1, prod(shape), 1, 1, 1)
    first, last = along[0], along[-1]
    bm = sizes[first] if first != len(shape) - 1 else 1
    if last == len(shape) - 1:
        k = shape[-1]
        bk = k if sizes[-1] == WHOLE else min(sizes[-1], k)
        m = shape[-2] if len(shape) > 1 and bm > 1 else prod(shape[:-1])
        return Blocks(prod(shape[:-1]) // m, m, k, min(bm, m), bk)
    return Blocks(
        prod(shape[:first]), shape[first], prod(shape[first + 1 :]), min(bm, shape[first]), 1
    )


def _channel(shape: Sequence[int], dim: int) -> Blocks:
    outer, n, inner = prod(shape[:dim]), shape[dim], prod(shape[dim + 1 :])
    if inner == 1:
        return Blocks(1, outer, n, outer, 1)
    return Blocks(1, outer * n, inner, 1, inner, n if outer > 1 else 0)


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


@dataclass(frozen=True)
class Tiling:
    """A Tile, how many programs take one each, and the Extents that they take with it."""

    tile: Tile
    programs: int
    extents: Extents


def tiling(at: Blocks, elements: int, *, whole: bool, unit: int = 1024) -> Tiling | None:
    """Tiles of about `elements` elements, in units of at most about `unit` elements.

    whole: units are whole blocks, of any size; None if these are too large for a program
    """
    if whole and (at.modulus or _padded(at.bm) * _padded(at.bk) > LARGEST):
        return None
    if at.bm == 1:
        return _rows(at, elements, at.bk if whole else min(at.bk, _fitting(at.bk, unit)))
    return _tiles(at, elements, whole, unit)


def _rows(at: Blocks, elements: int, uk: int) -> Tiling:
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


def _tiles(at: Blocks, elements: int, whole: bool, unit: int) -> Tiling:
    """Units side by side along k, and programs above one another."""
    um = at.bm if whole else min(at.bm, unit // 32)
    uk = at.bk if whole else min(at.bk, 128)
    rows, part = _padded(um), _padded(uk)
    rm, rk = _ceil(at.bm, um), _ceil(at.bk, uk)
    nm, nk = _ceil(at.m, at.bm), _ceil(at.k, at.bk)
    count = min(max(1, elements // (rows * part)), _padded(nk * rk))
    even = at.bk % part == 0 and uk == part and (rk == 1 or at.k == at.bk)
    side = max(2, min(8, 64 // rows)) if part == 1 else min(part, max(4, min(8, 64 // rows)))
    kind = "column" if part == 1 else "rectangle"
    tile = Tile(kind, rows, count * part, part, even, 1, False, side)
    across = _ceil(nk * rk, count)
    extents = Extents(
        units=0, m=at.m, k=at.k, bm=at.bm, bk=at.bk, um=um, uk=uk, rm=rm, rk=rk, across=across,
        nm=nm, nk=nk, modulus=1,
    )  # fmt: skip
    return Tiling(tile, at.batch * nm * rm * across, extents)


def packs(at: Blocks, tile: Tile, uk: int, bits: int, last: int) -> bool:
    """Whether codes of `bits` bits in rows of `last` fill whole bytes within each unit.

    uk: columns of a unit (Extents)
    """
    together = {1: 8, 2: 4, 4: 2, 6: 16}.get(bits)  # as device.tile.codes_per_group
    if together is None or last % together:
        return False
    if tile.kind == "column":
        return tile.columns % together == 0
    return tile.part % together == 0 and uk % together == 0 and at.bk % together == 0


def groups(at: Blocks, tile: Tile, uk: int, size: int) -> bool:
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
