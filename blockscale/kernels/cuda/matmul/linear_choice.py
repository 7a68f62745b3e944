"""What a linear call can run as, and what is taken: measured where a table knows, else a rule."""

from itertools import product
from typing import NamedTuple

from blockscale.kernels.cuda import tables as tune
from blockscale.kernels.cuda.matmul import linear_few, linear_work
from blockscale.kernels.cuda.matmul.linear_launch import Tile
from blockscale.kernels.cuda.matmul.linear_reading import Reading


class Call(NamedTuple):
    """What decides. rows counts the bfloat16 parts of x; `what` is "weight", "int8" or "fp8".

    fused: whether this GPU can run linear_fused and linear_few on this weight
    """

    what: str
    fmt: str
    rows: int
    n: int
    k: int
    fused: bool = False


class Choice(NamedTuple):
    """path: "tile" (decode in registers), "dense" (decode to memory, then the library), "blocks"
    (decode to memory, sums by block), "few" (decode as memory delivers), "fused" (decode beside a
    Hopper's tensor cores), "codes" (codes times codes) or "library"; and its tile.
    Of "dense", tile.outputs is how many rows of the weight are decoded at a time, 0 for all.
    """

    path: str
    tile: Tile | None = None


_TILES = (  # rows, outputs, words, warps, stages, chunks, unroll: what won somewhere
    *((8, 64, 64, 4, 3, 1), (8, 64, 64, 4, 3, 2), (16, 64, 64, 4, 3, 1), (16, 64, 64, 4, 3, 2)),
    *((16, 64, 32, 4, 3, 2), (16, 128, 32, 4, 3, 4), (16, 128, 16, 4, 3, 2), (16, 64, 16, 4, 4, 2)),
    *((16, 64, 16, 4, 3, 2, 2), (32, 64, 32, 4, 3, 1), (32, 128, 32, 4, 3, 2)),
    *((32, 128, 16, 4, 3, 1), (32, 128, 16, 4, 3, 2), (64, 128, 16, 4, 3, 1)),
    *((64, 128, 16, 4, 3, 2), (128, 64, 16, 4, 3, 1), (128, 128, 16, 8, 3, 1)),
)
FEW = (  # rows, outputs, words, warps, stages (none), chunks
    *((8, 32, 32, 2, 0, 1), (8, 32, 32, 2, 0, 4), (8, 16, 32, 1, 0, 4), (8, 32, 64, 2, 0, 1)),
    *((8, 32, 64, 2, 0, 2), (8, 16, 64, 1, 0, 1), (8, 32, 48, 2, 0, 1), (8, 32, 48, 2, 0, 4)),
    *((16, 32, 32, 2, 0, 1), (16, 32, 32, 2, 0, 4), (16, 64, 32, 2, 0, 2), (16, 64, 32, 4, 0, 2)),
    *((16, 32, 64, 2, 0, 2), (16, 32, 48, 2, 0, 2), (16, 32, 48, 2, 0, 4)),
    *((32, 32, 32, 2, 0, 4), (32, 64, 32, 2, 0, 2), (32, 64, 32, 4, 0, 2), (32, 32, 48, 2, 0, 4)),
)
_FUSED = (  # rows, outputs, programs that share a processor; the rest is the kernel's own
    *((8, 64, 3), (8, 64, 4), (8, 64, 5), (8, 128, 2), (16, 64, 3), (16, 64, 4), (16, 64, 5)),
    *((16, 128, 2), (32, 64, 3), (32, 64, 4), (32, 128, 2), (64, 64, 2), (64, 64, 3)),
    *((64, 64, 0), (64, 128, 0), (128, 64, 0), (128, 64, 2), (128, 128, 0), (192, 128, 0)),
    *((256, 64, 0), (256, 128, 0)),
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
    if choice.path == "tile" and r is not None and not r.planes:
        return False
    if choice.path == "few" and r is not None and choice.tile is not None:
        return call.fused and linear_few.takes(r, choice.tile.words)
    if choice.path == "fused" and r is not None and choice.tile is not None:
        return call.fused and linear_work.takes(r, choice.tile)
    if choice.path == "blocks" and r is not None and choice.tile is not None:
        return r.per_block and r.width % (choice.tile.words * choice.tile.unroll) == 0
    if choice.path == "tile" and r is not None and choice.tile is not None:
        tile, words = choice.tile, call.k // r.planes
        turns = words // (tile.words * tile.unroll * tile.chunks)
        if r.per_block:
            return r.words > 0 and r.words % tile.words == 0
        return tile.unroll == 1 or turns > 0
    return True


def rule(call: Call, r: Reading | None) -> Choice:
    """What is taken where nothing was measured."""
    if call.what == "fp8":
        return Choice("library")
    if call.what in ("int8", "codes"):
        return Choice("codes", Tile(*(_CODES[2] if call.rows <= 16 else _CODES[4])))
    if call.fused and r is not None and _few(call, r):
        return Choice("few", _few_tile(call, r))
    fused = call.fused and r is not None and linear_work.takes(r)
    if fused and call.rows > 32 and (call.rows < 2048 or r.per_block):  # type: ignore[union-attr]
        return Choice("fused", _fused_tile(call, r))  # type: ignore[arg-type]
    if r is not None and (call.rows > 1024 or not in_registers(r)):
        return Choice("blocks", _blocks(call, r)) if r.per_block else Choice("dense")
    rows = min(max(16, 1 << (call.rows - 1).bit_length()), 128)
    words = 16 if rows > 16 or (r is not None and r.per_block) else 32
    return Choice("tile", Tile(rows, 128, words, 8 if rows > 64 else 4, 3, _chunks(call, rows)))


def in_registers(r: Reading) -> bool:
    """Whether codes can be decoded on their way, and need no memory of their own."""
    return r.planes > 0 and (not r.per_block or r.words % linear_work.WORDS == 0)


def _blocks(call: Call, r: Reading) -> Tile:
    codes = min(r.width & -r.width, 64)  # along k: the largest power of two that divides a block
    rows = min(max(16, 1 << (call.rows - 1).bit_length()), 128)
    return Tile(rows, 128, codes, 8 if rows > 64 else 4, 4)


def _few(call: Call, r: Reading) -> bool:
    """Small blocks that only `few` and `blocks` read have nothing better up to 64 rows: `blocks`
    takes 3.7 times the bfloat16 layer's time there, two rows of `few` tiles twice 1.06 times."""
    most = 64 if linear_few.small(r) and not linear_work.takes(r) else 32
    return call.rows <= most and linear_few.takes(r, linear_few.turn(r))


def _few_tile(call: Call, r: Reading) -> Tile:
    """Enough programs for an H200's 132 processors six times, of at least four turns each."""
    rows = min(max(8, 1 << (call.rows - 1).bit_length()), 32)
    words, chunks = linear_few.turn(r), 1
    size = call.k * r.element.bits // 32
    while -(-call.n // 32) * chunks < 792 and size >= 8 * words * chunks:
        chunks *= 2
    return Tile(rows, 32, words, 2, 0, chunks)


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
    if call.fused and r is not None and linear_work.takes(r):
        found = _fused(call, r)
        if call.rows >= 64:  # where nothing else was ever faster but, for many rows, the library
            return found + (_many_rows(call, r)[:1] if call.rows >= 1024 else [])
    if call.rows >= 64 or (r is not None and not in_registers(r)):
        found += _many_rows(call, r)
    for each in FEW if r is not None and call.rows <= 32 else ():
        choice = Choice("few", Tile(*each))
        if each[0] == max(8, 1 << (call.rows - 1).bit_length()) and fits(choice, call, r):
            found.append(choice)
    top = max(16, 1 << (call.rows - 1).bit_length())
    for numbers in _TILES if r is not None and r.planes else ():
        choice = Choice("tile", Tile(*numbers))
        if _near(numbers[0], call.rows, top) and fits(choice, call, r):
            found.append(choice)
    return found


def _many_rows(call: Call, r: Reading | None) -> list[Choice]:
    if r is not None and r.per_block:
        tiles = [_blocks(call, r), *(Tile(*numbers) for numbers in _BLOCKS)]
        found = [Choice("blocks", tile) for tile in dict.fromkeys(tiles)]
        return [choice for choice in found if fits(choice, call, r)]
    return [Choice("dense", Tile(0, outputs, 0, 0, 0)) for outputs in _DENSE]


def _fused(call: Call, r: Reading) -> list[Choice]:
    """Tiles that are not much larger than x, along k in one piece or, for few tiles, in more."""
    found = []
    top = max(8, 1 << (call.rows - 1).bit_length())
    for rows, outputs, shared in _FUSED:
        if rows > top or rows * 2 < min(top, 256) or (top < 64 and rows != top):
            continue
        programs = -(-call.rows // rows) * -(-call.n // outputs)
        ways = [(1, 1), (2, 1), (4, 1)] if programs < 264 * max(shared, 1) else [(1, 1)]
        ways += [(1, 2), (1, 4)] if rows > 64 and 132 < programs < 1056 else []
        pieces = (4, 8) if linear_work.slots(r) and rows >= 128 and not shared else (4,)
        for (chunks, tail), warps in product(ways, pieces):
            tile = Tile(rows, outputs, linear_work.WORDS, warps, shared, chunks, tail)
            if linear_work.takes(r, tile):
                found.append(Choice("fused", tile))
    return found


def _fused_tile(call: Call, r: Reading) -> Tile:
    """As many rows as there are, up to what registers hold; fewer outputs where tiles are few."""
    rows = min(max(64, 1 << (call.rows - 1).bit_length()), 256)
    while rows > 64 and not linear_work.takes(r, Tile(rows, 128, linear_work.WORDS, 4, 0)):
        rows //= 2
    tiles = -(-call.rows // rows) * -(-call.n // 128)
    return Tile(rows, 128 if tiles > 66 else 64, linear_work.WORDS, 4, 0)


def _near(rows: int, asked: int, top: int) -> bool:
    """Whether a tile of so many rows is worth a try."""
    if rows == 8:
        return asked <= 8
    return top // 2 <= rows <= top or (rows >= 128 and top > 128)


def _coded(call: Call) -> list[Choice]:
    top = max(16, 1 << (call.rows - 1).bit_length())
    tiles = [t for t in _CODES if _near(t[0], call.rows, top)]
    return [Choice("codes", Tile(*tile)) for tile in tiles]
