"""How a tensor's blocks are laid over programs: a View for each (shape, block), from few numbers.

Any tensor with any block is one of [batch, m, k] with blocks [bm, bk] over m and k, because the
dimensions beside a block's merge. A program takes a tile of units, which are parts of blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import gcd, prod

from blockscale.core.block import WHOLE, Block

LARGEST = 32768  # elements of a block that one program holds in registers


@dataclass(frozen=True)
class Tile:
    """What kernels are compiled for (tile.py).

    part:    columns of a unit; in kind "row" all of them
    even:    units follow one another, full ones but for the last
    vector:  a power of two that divides where units begin and end
    side:    neighbours that a thread takes at most; 0: as many as one instruction moves
    modulus: whether several batches share scales
    pairs:   neighbours of 16 bits are taken two and two
    packs:   codes are packed as they are written, or unpacked as they are read
    chooses: the kernel chooses scales; `keeps`: and writes them
    result:  "codes", "values", "gradient" or "scale"
    seeds:   numbers in the seed, 0 without one
    quads:   four neighbours may share a counter of random numbers
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

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, each.name) for each in fields(self)))

    def __hash__(self) -> int:
        return self._hash  # Triton asks at each launch

    @cached_property
    def halved(self) -> "Tile":
        """The same counted in pairs."""
        part, side = max(self.part // 2, 1), self.side // 2
        return replace(self, columns=self.columns // 2, part=part, side=side)


@dataclass(frozen=True)
class Layout:
    """A tensor as [batch, m, k] with blocks [bm, bk]; modulus: as many rows of scales (or 0)."""

    batch: int
    m: int
    k: int
    bm: int
    bk: int
    modulus: int = 0


def layout(shape: Sequence[int], block: Block) -> Layout:
    """The blocks of a tensor of `shape`, none of whose sizes is 0."""
    sizes = block.sizes_for(len(shape))
    parted = [i for i, (n, b) in enumerate(zip(shape, sizes, strict=True)) if b != WHOLE]
    if not parted:
        return Layout(1, 1, prod(shape), 1, prod(shape))
    if block.rest == WHOLE:  # channelA
        return _channel(shape, parted[0])
    along = [i for i, b in enumerate(sizes) if b != 1]  # few, and the last ones of a tile
    if not along:
        return Layout(1, prod(shape), 1, 1, 1)
    first, last = along[0], along[-1]
    bm = sizes[first] if first != len(shape) - 1 else 1
    if last == len(shape) - 1:
        k = shape[-1]
        bk = k if sizes[-1] == WHOLE else min(sizes[-1], k)
        m = shape[-2] if len(shape) > 1 and bm > 1 else prod(shape[:-1])
        return Layout(prod(shape[:-1]) // m, m, k, min(bm, m), bk)
    return Layout(
        prod(shape[:first]), shape[first], prod(shape[first + 1 :]), min(bm, shape[first]), 1
    )


def _channel(shape: Sequence[int], dim: int) -> Layout:
    outer, n, inner = prod(shape[:dim]), shape[dim], prod(shape[dim + 1 :])
    if inner == 1:
        return Layout(1, outer, n, outer, 1)
    return Layout(1, outer * n, inner, 1, inner, n if outer > 1 else 0)


@dataclass(frozen=True)
class View:
    """A Tile and the numbers that its kernels take with it."""

    tile: Tile
    programs: int
    numbers: tuple[int, ...]


def view(at: Layout, elements: int, *, whole: bool, unit: int = 1024) -> View | None:
    """Tiles of about `elements` elements, in units of at most about `unit`.

    whole: units are whole blocks of any size; None if these are too large.
    """
    if whole and (at.modulus or _padded(at.bm) * _padded(at.bk) > LARGEST):
        return None
    if at.bm == 1:
        return _rows(at, elements, at.bk if whole else min(at.bk, _fitting(at.bk, unit)))
    return _tiles(at, elements, whole, unit)


def _rows(at: Layout, elements: int, uk: int) -> View:
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
    numbers = (units, at.m, at.k, 1, at.bk, 1, uk, 1, parts, 1, 1, blocks, max(at.modulus, 1))
    return View(tile, _ceil(units, rows), numbers)


def _fitting(size: int, unit: int) -> int:
    """A unit of a large block: a power of two that divides it, or one that wastes little."""
    return next((u for u in (unit, unit // 2, unit // 4) if size % u == 0), unit)


def _tiles(at: Layout, elements: int, whole: bool, unit: int) -> View:
    """Units side by side along k, and programs above one another."""
    um = at.bm if whole else min(at.bm, unit // 32)
    uk = at.bk if whole else min(at.bk, 128)
    rows, part = _padded(um), _padded(uk)
    rm, rk = _ceil(at.bm, um), _ceil(at.bk, uk)
    nm, nk = _ceil(at.m, at.bm), _ceil(at.k, at.bk)
    count = min(max(1, elements // (rows * part)), _padded(nk * rk))
    even = at.bk % part == 0 and uk == part and (rk == 1 or at.k == at.bk)
    side = max(2, min(8, 64 // rows)) if part == 1 else min(part, max(4, min(8, 64 // rows)))
    kind = "column" if part == 1 else "tile"
    tile = Tile(kind, rows, count * part, part, even, 1, False, side)
    across = _ceil(nk * rk, count)
    numbers = (0, at.m, at.k, at.bm, at.bk, um, uk, rm, rk, across, nm, nk, 1)
    return View(tile, at.batch * nm * rm * across, numbers)


def packs(at: Layout, tile: Tile, uk: int, bits: int, last: int) -> bool:
    """Whether codes of `bits` bits in rows of `last` fill bytes within each unit."""
    together = {1: 8, 2: 4, 4: 2, 6: 16}.get(bits)  # as in tile.py
    if together is None or last % together:
        return False
    if tile.kind == "column":
        return tile.columns % together == 0
    return tile.part % together == 0 and uk % together == 0 and at.bk % together == 0


def groups(at: Layout, tile: Tile, uk: int, size: int) -> bool:
    """Whether neighbours whose index begins at a multiple of `size` share a unit, or a row of
    units that are columns."""
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
