# SPDX-License-Identifier: BSD-3-Clause
"""Which way a product is computed: measured where a table knows, else by a rule.

The ways, each in the file of its name:

"few"      codes are decoded as memory delivers them, on a Hopper
"fused"    codes are decoded beside a Hopper's tensor cores
"tile"     codes are decoded in registers, on any GPU
"dense"    codes are decoded to memory, and the library multiplies
"blocks"   codes are decoded to memory, and the sums of blocks get scales
"codes"    codes meet codes (codes.py); "library": likewise, by the library
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from blockscale.kernels.cuda import tables
from blockscale.kernels.cuda.matmul import blocks, codes, dense, few, fused, tile
from blockscale.kernels.cuda.matmul.operands import ProductCall
from blockscale.kernels.cuda.matmul.reading import Reading

Settings = (
    few.FewSettings
    | fused.FusedSettings
    | tile.TileSettings
    | dense.DenseSettings
    | blocks.BlocksSettings
    | codes.CodesSettings
    | codes.LibrarySettings
)


class ProductWay(NamedTuple):
    """One way to multiply.

    settings: their type, which reads and writes a table's numbers
    run: (x, weight, its spelling, what codes.py or reading.py say of it, ends, settings, dtype)
        -> [rows, n]
    fits: whether a weight allows settings, for ways that decode the weight under conditions
    """

    settings: Any
    run: Callable[..., Tensor]
    fits: Callable[[ProductCall, Reading, Any], bool] | None = None


WAYS = {
    "few": ProductWay(few.FewSettings, few.few, few.fits),
    "fused": ProductWay(fused.FusedSettings, fused.fused, fused.fits),
    "tile": ProductWay(tile.TileSettings, tile.tile, tile.fits),
    "dense": ProductWay(dense.DenseSettings, dense.dense),
    "blocks": ProductWay(blocks.BlocksSettings, blocks.blocks, blocks.fits),
    "codes": ProductWay(codes.CodesSettings, codes.codes),
    "library": ProductWay(codes.LibrarySettings, codes.codes),
}


class WayChoice(NamedTuple):
    """A way, by its name in WAYS, and its settings."""

    way: str
    settings: Settings

    def entry(self) -> list[Any]:
        """What a table has of it."""
        return [self.way, *self.settings.entry()]


def read(entry: Sequence[Any]) -> WayChoice:
    """The choice of a table's entry. Raises ValueError if it names no way."""
    name, *numbers = entry
    if name not in WAYS:
        raise ValueError(
            f"a table of launch choices names the way {name!r}: expected one of {', '.join(WAYS)}; "
            "delete the table that BLOCKSCALE_TUNE_CACHE names"
        )
    return WayChoice(name, WAYS[name].settings.read(numbers))


def choose(call: ProductCall, r: Reading | None, device: str) -> WayChoice:
    """The measured choice for the nearest shape, if a table has one that fits, else the rule's.

    r: how the weight is read, None where codes meet codes; device: the GPU's name
    """
    entry = tables.lookup(call.what, call.fmt, (call.rows, call.n, call.k), device)
    if entry is not None:
        choice = read(entry)
        if fits(choice, call, r):
            return choice
    return rule(call, r)


def fits(choice: WayChoice, call: ProductCall, r: Reading | None) -> bool:
    """Whether the GPU and the blocks of the weight allow the choice."""
    condition = WAYS[choice.way].fits
    return r is None or condition is None or condition(call, r, choice.settings)


def rule(call: ProductCall, r: Reading | None) -> WayChoice:
    """What is taken where nothing was measured."""
    if call.what == "fp8":
        return WayChoice("library", codes.LibrarySettings())
    if call.what == "int8":
        return WayChoice("codes", codes.usual(call))
    assert r is not None
    if call.fused and few.best(call, r):
        return WayChoice("few", few.usual(call, r))
    if call.fused and fused.takes(r) and call.rows > 32 and (call.rows < 2048 or r.per_block):
        return WayChoice("fused", fused.usual(call, r))
    if call.rows > 1024 or not tile.in_registers(r):
        return _through_memory(call, r)
    return WayChoice("tile", tile.usual(call, r))


def _through_memory(call: ProductCall, r: Reading) -> WayChoice:
    """What decodes the weight to memory."""
    if r.per_block:
        return WayChoice("blocks", blocks.usual(call, r))
    return WayChoice("dense", dense.DenseSettings())


def for_any_rows(r: Reading | None) -> WayChoice | None:
    """A choice with which a row's sums do not depend on how many rows there are: tiles of one size,
    each of which has all of k. None where only the library multiplies.

    r: as `choose` takes it
    """
    if r is None:
        return WayChoice("codes", codes.ANY_ROWS)
    if tile.in_registers(r):
        return WayChoice("tile", tile.ANY_ROWS)
    return WayChoice("blocks", blocks.for_any_rows(r)) if r.per_block else None


def to_measure(call: ProductCall, r: Reading | None) -> list[WayChoice]:
    """What `tune` measures for a call, of whose weight `r` is None where codes meet codes."""
    if call.what == "fp8":
        return [
            WayChoice("library", codes.LibrarySettings()),
            *_of("codes", codes.to_measure(call)),
        ]
    if call.what == "int8":
        return _of("codes", codes.to_measure(call))
    assert r is not None
    choices = []
    if call.fused and fused.takes(r):
        choices = _of("fused", fused.to_measure(call, r))
        if call.rows >= 64:  # where nothing else was ever faster but, for many rows, the library
            return choices + (_memory_to_measure(call, r)[:1] if call.rows >= 1024 else [])
    if call.rows >= 64 or not tile.in_registers(r):
        choices += _memory_to_measure(call, r)
    return [*choices, *_of("few", few.to_measure(call, r)), *_of("tile", tile.to_measure(call, r))]


def _memory_to_measure(call: ProductCall, r: Reading) -> list[WayChoice]:
    """What `tune` measures of the ways that decode the weight to memory."""
    if r.per_block:
        return _of("blocks", blocks.to_measure(call, r))
    return _of("dense", dense.TO_MEASURE)


def _of(way: str, settings: Sequence[Settings]) -> list[WayChoice]:
    """Choices of one way."""
    return [WayChoice(way, each) for each in settings]
