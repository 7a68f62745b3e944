"""What a linear call can run as, and what is taken: measured where a table knows, else a rule."""

from typing import NamedTuple

from blockscale.kernels.cuda import tune
from blockscale.kernels.cuda.linear_launch import Tile
from blockscale.kernels.cuda.linear_reading import Reading


class Call(NamedTuple):
    """What decides. rows counts the bfloat16 parts of x; `what` is "weight", "int8" or "fp8"."""

    what: str
    fmt: str
    rows: int
    n: int
    k: int


class Choice(NamedTuple):
    """path: "tile" (decode in registers), "dense" (decode to memory, then the library), "blocks"
    (decode to memory, sums by block), "codes" (codes times codes) or "library"; and its tile.
    Of "dense", tile.outputs is how many rows of the weight are decoded at a time, 0 for all.
    """

    path: str
    tile: Tile | None = None


_TILES = (  # rows, outputs, words, warps, stages, chunks, unroll
    *((8, 64, 64, 4, 3, 1), (8, 64, 64, 4, 3, 2), (8, 64, 64, 4, 4, 2), (8, 64, 64, 4, 3, 4)),
    *((8, 32, 64, 2, 4, 2), (8, 32, 64, 2, 4, 1)),
    *((16, 64, 64, 4, 3, 1), (16, 64, 64, 4, 3, 2), (16, 64, 32, 4, 3, 2), (16, 128, 32, 4, 3, 4)),
    *(
        (16, 32, 64, 2, 4, 2),
        (16, 32, 64, 4, 3, 2),
        (16, 32, 64, 2, 3, 1),
        (16, 32, 16, 2, 3, 2, 4),
    ),
    *(
        (16, 128, 16, 4, 3, 2),
        (16, 128, 16, 4, 3, 4),
        (16, 128, 16, 4, 4, 2),
        (16, 64, 16, 4, 4, 2),
    ),
    *((16, 64, 16, 4, 3, 2, 2), (16, 32, 16, 2, 4, 2, 2), (16, 32, 16, 2, 5, 2)),
    *((32, 64, 32, 4, 3, 1), (32, 64, 64, 4, 2, 2), (32, 128, 32, 4, 3, 2), (32, 128, 16, 4, 3, 2)),
    *((32, 128, 16, 4, 3, 1), (32, 128, 16, 4, 3, 4)),
    *((64, 128, 16, 4, 3, 1), (64, 128, 16, 4, 3, 2), (64, 128, 32, 8, 2, 2)),
    *((128, 64, 16, 4, 3, 1), (128, 128, 16, 8, 3, 1), (128, 128, 32, 8, 2, 1)),
)
_DENSE = (0, 2048, 4096)  # rows of the weight at a time, 0 for all
_CODES = (
    *((16, 64, 256, 4, 3), (16, 128, 128, 4, 4), (16, 128, 256, 4, 3), (32, 64, 128, 4, 4)),
    *((64, 128, 128, 4, 4), (64, 64, 128, 4, 4), (128, 128, 128, 8, 3), (128, 128, 128, 4, 3)),
    *((128, 256, 128, 8, 3), (256, 128, 128, 8, 3), (128, 256, 64, 8, 4), (256, 128, 64, 8, 4)),
)
_BLOCKS = (  # rows, outputs, codes along k, warps, stages, chunks (always 1), unroll
    *((128, 128, 64, 8, 4, 1, 1), (128, 128, 64, 8, 3, 1, 2), (128, 128, 64, 8, 2, 1, 2)),
    *((128, 128, 128, 8, 3, 1, 1), (128, 128, 128, 8, 2, 1, 1), (128, 128, 64, 8, 3, 1, 1)),
    *((128, 64, 64, 4, 3, 1, 2), (64, 128, 64, 4, 3, 1, 2)),
)


def choose(call: Call, r: Reading | None, device: str) -> Choice:
    """The measured choice for the nearest shape, if a table has one that fits, else the rule's."""
    found = tune.lookup(call.what, call.fmt, (call.rows, call.n, call.k), device)
    if found is not None:
        path, *numbers = found
        choice = Choice(path, Tile(*numbers) if numbers else None)
        if fits(choice, call, r):
            return choice
    return rule(call, r)


def fits(choice: Choice, call: Call, r: Reading | None) -> bool:
    """Whether the blocks of a weight allow the tile."""
    if choice.path == "blocks" and r is not None and choice.tile is not None:
        return r.per_block and r.words * r.planes % (choice.tile.words * choice.tile.unroll) == 0
    if choice.path == "tile" and r is not None and choice.tile is not None:
        tile, words = choice.tile, call.k // r.planes
        turns = words // (tile.words * tile.unroll * tile.chunks)
        if r.per_block:
            return r.words % tile.words == 0
        return tile.unroll == 1 or turns > 0
    return True


def rule(call: Call, r: Reading | None) -> Choice:
    """What is taken where nothing was measured."""
    if call.what == "fp8":
        return Choice("library")
    if call.what in ("int8", "codes"):
        return Choice("codes", Tile(*(_CODES[2] if call.rows <= 16 else _CODES[4])))
    if call.rows > 1024 and r is not None:
        return Choice("blocks", Tile(128, 128, 64, 8, 4)) if r.per_block else Choice("dense")
    rows = min(max(16, 1 << (call.rows - 1).bit_length()), 128)
    words = 16 if rows > 16 or (r is not None and r.per_block) else 32
    return Choice("tile", Tile(rows, 128, words, 8 if rows > 64 else 4, 3, _chunks(call, rows)))


def _chunks(call: Call, rows: int) -> int:
    """Enough programs for an H200's 132 processors, twice."""
    programs = -(-call.n // 128) * -(-call.rows // rows)
    chunks = 1
    while programs * chunks < 256 and call.k // (chunks * 2) >= 1024:
        chunks *= 2
    return chunks


def candidates(call: Call, r: Reading | None) -> list[Choice]:
    """What `tune` measures for a call."""
    if call.what == "fp8":
        return [Choice("library"), *_coded(call)]
    if call.what == "int8":
        return _coded(call)
    found = []
    if call.rows >= 64:
        found = _many_rows(r)
    top = max(16, 1 << (call.rows - 1).bit_length())
    for numbers in _TILES if r is not None else ():
        choice = Choice("tile", Tile(*numbers))
        if _near(numbers[0], call.rows, top) and fits(choice, call, r):
            found.append(choice)
    return found


def _many_rows(r: Reading | None) -> list[Choice]:
    if r is not None and r.per_block:
        return [Choice("blocks", Tile(*numbers)) for numbers in _BLOCKS]
    return [Choice("dense", Tile(0, outputs, 0, 0, 0)) for outputs in _DENSE]


def _near(rows: int, asked: int, top: int) -> bool:
    """Whether a tile of so many rows is worth a try."""
    if rows == 8:
        return asked <= 8
    return top // 2 <= rows <= top or (rows >= 128 and top > 128)


def _coded(call: Call) -> list[Choice]:
    top = max(16, 1 << (call.rows - 1).bit_length())
    tiles = [t for t in _CODES if _near(t[0], call.rows, top)]
    return [Choice("codes", Tile(*tile)) for tile in tiles]
