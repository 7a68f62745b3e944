# SPDX-License-Identifier: BSD-3-Clause
"""`compare`: how far the tensors of two models are apart, read a slab of rows at a time.

Each side is a file or a directory, of ours or of another producer.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from blockscale.core.work import Progress
from blockscale.export.checkpoints import safetensors
from blockscale.export.checkpoints.checkpoint import Checkpoint, Stored
from blockscale.export.checkpoints.gguf.records import PLAIN
from blockscale.export.checkpoints.opening import checkpoint
from blockscale.files.inspect import TensorSummary, inspect
from blockscale.files.metadata import FileError, TensorInfo
from blockscale.files.slabs.cutting import SLAB, cut_slabs
from blockscale.files.slabs.pool import Map, Pool
from blockscale.files.slabs.rows import (
    FloatRows,
    OpenStoredModel,
    OtherLayoutRows,
    QuantizedRows,
    Rows,
)
from blockscale.files.stored_model import StoredModel, open_stored_model
from blockscale.files.stream import bytes_of
from blockscale.layers.before import Order
from blockscale.ops.tensor import QTensor, dtype_name


class ComparedModel(ExitStack):
    """One of the two: rows {name: what its head tells of a tensor}, unread {name: why not}."""

    path: Path
    rows: dict[str, TensorSummary]
    unread: dict[str, str]

    def stored(self, name: str, layout: str) -> Rows:
        """A tensor's rows, seen in a layout."""
        raise NotImplementedError


class StoredSide(ComparedModel):
    """A file or directory of ours, or of floats alone: slabs are read from the file."""

    def __init__(self, source: StoredModel):
        super().__init__()
        self.path, self.unread = source.path, {}
        self._files = self.enter_context(OpenStoredModel(source))
        rows = {row.name: row for row in inspect(source.path).rows}
        tied = source.metadata.aliases.items()  # also under the names that are tied to a row
        self.rows = rows | {
            alias: rows[to] for alias, to in tied if to in rows and alias not in rows
        }

    @classmethod
    def of(cls, path: Path) -> Self | None:
        """The side, if another producer has quantized nothing of it."""
        if safetensors.recognize(path) is None:
            return None
        source = open_stored_model(path)
        foreign = not source.metadata.tensors and safetensors.Safetensors(path, "").producers
        return None if foreign else cls(source)

    def stored(self, name: str, layout: str) -> Rows:
        return self._files.rows(name, layout)


class CheckpointSide(ComparedModel):
    """Another producer's: a tensor is read whole, as codes, and dequantized in slabs."""

    def __init__(self, source: Checkpoint):
        super().__init__()
        self._source = self.enter_context(source)
        self.path = source.path
        self.unread = {name: each.unread for name, each in source.stored.items() if each.unread}
        self.rows = {
            name: _summary(each) for name, each in source.stored.items() if not each.unread
        }

    def stored(self, name: str, layout: str) -> Rows:
        result, order = self._source[name], self._source.order(name)
        if isinstance(result, Tensor):
            return FloatRows(HeldTensor({name: result}), name, layout)
        info = TensorInfo(str(result.format), tuple(result.shape))
        before = None if order is None else Order(order.to(torch.int32))
        rows = QuantizedRows(held_parts(result), info, before)
        whole = rows.whole or layout != "plain"
        return OtherLayoutRows(rows, info, layout) if whole else rows


def _summary(stored: Stored) -> TensorSummary:
    plain = dtype_name(PLAIN[stored.kind][1]) if stored.kind in PLAIN else stored.kind
    fmt, quantized = stored.format or plain, bool(stored.format)
    layout = "plain" if quantized else ""
    shape, count = stored.shape, prod(stored.shape)
    return TensorSummary(stored.name, fmt, shape, count, stored.nbytes, quantized, layout)


class HeldTensor:
    """Tensors in memory, in the place of a file's."""

    def __init__(self, tensors: Mapping[str, Tensor]):
        self.tensors: Mapping[str, Any] = tensors

    def rows(
        self, name: str, start: int, stop: int, shape: tuple[int, ...] | None = None
    ) -> Tensor:
        """As `Reader.rows`."""
        tensor = self.tensors[name] if shape is None else self.tensors[name].reshape(shape)
        return tensor[start:stop] if tensor.ndim else tensor

    def tensor(self, name: str) -> Tensor:
        """As `Reader.tensor`."""
        values: Tensor = self.tensors[name]
        return values

    def chunks(self, name: str) -> Iterator[memoryview]:
        """As `Reader.chunks`, in one piece."""
        yield bytes_of(self.tensors[name].contiguous())


def held_parts(q: QTensor) -> dict[str, Any]:
    """{part: what holds it, its name there} of a QTensor, as of one in files."""
    parts = {"codes": q.packed} | {part: getattr(q.qparams, part) for part in q.format.parts}
    tensor = HeldTensor(parts)
    return {part: (tensor, part) for part in parts}


# The distances, tensor by tensor.


_CODES = {"uint8", "int8", "int16", "uint16", "int32", "uint32"}


@dataclass(frozen=True)
class TensorDifference:
    """One tensor in both: a is what it should be, b what it is."""

    name: str
    shape: tuple[int, ...]
    a: str  # format or dtype
    b: str
    bits_a: float
    bits_b: float
    sqnr: float  # dB: 10 log10 (sum a² / sum (a - b)²), infinite where they are equal
    max_error: float  # the largest |a - b|
    odd: int  # elements of which one is NaN or infinite and the other is not the same

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, which has no infinity: null."""
        return asdict(self) | {
            "sqnr": self.sqnr if math.isfinite(self.sqnr) else None,
            "equal": self.equal,
        }

    @property
    def equal(self) -> bool:
        """Whether every element has the same value."""
        return self.max_error == 0 and self.odd == 0


@dataclass(frozen=True)
class FileComparison:
    """What `compare` gives: each tensor that is in both, and the names of the others."""

    differences: tuple[TensorDifference, ...]
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    mismatched: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)  # {name: why it was not compared}

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "tensors": [each.to_dict() for each in self.differences],
            "only_a": list(self.only_a),
            "only_b": list(self.only_b),
            "mismatched": {name: {"a": a, "b": b} for name, (a, b) in self.mismatched.items()},
            "unread": self.unread,
        }


def compare(
    a: str | Path, b: str | Path, *, elements: int = SLAB, progress: Progress | None = None
) -> FileComparison:
    """Compare every tensor of `a` with the one of the same name in `b`; either may be quantized.

    a, b: whatever `bs.checkpoint` reads (docs/checkpoints.md). Names are those in the files

    Quantized tensors are dequantized to float32; sums are float64. `elements` is the size of a
    slab. What cannot be read is named in `unread`.

    Raises FileError for files that cannot be read, or that have no tensor in common, or only such
    that cannot be decoded.
    """
    progress = progress or Progress()
    side_a, side_b = _side(a), _side(b)
    unread = side_a.unread | side_b.unread
    names = [name for name in side_a.rows if name in side_b.rows and name not in unread]
    pairs = [(name, side_a.rows[name], side_b.rows[name]) for name in names]
    unread |= {name: why for name, x, y in pairs if (why := _why_not(x, y))}
    pairs = [pair for pair in pairs if pair[0] not in unread]
    if not pairs:
        raise FileError(_nothing(side_a, side_b, unread))
    fitting = [pair for pair in pairs if pair[1].shape == pair[2].shape]
    progress.start(sum(row.nbytes for _, row, _ in fitting), 0)
    differences = []
    with side_a, side_b, Pool() as pool:
        for name, x, y in fitting:
            layout = y.layout or x.layout or "plain"
            slab_rows = side_a.stored(x.name, layout), side_b.stored(y.name, layout)
            differences.append(_difference(name, x, y, _errors(*slab_rows, elements, pool.map)))
            progress.advance(name, x.nbytes)
    shapes = {name: (x.shape, y.shape) for name, x, y in pairs if x.shape != y.shape}
    only_a, only_b = (
        tuple(sorted(p.rows.keys() - q.rows.keys() - unread.keys()))
        for p, q in ((side_a, side_b), (side_b, side_a))
    )
    return FileComparison(tuple(differences), only_a, only_b, shapes, unread)


def _side(path: str | Path) -> ComparedModel:
    """A file or directory of ours or of floats, or one of another producer."""
    path = Path(path)
    stored = StoredSide.of(path)
    return stored if stored is not None else CheckpointSide(checkpoint(path))


def _why_not(a: TensorSummary, b: TensorSummary) -> str:
    """Why numbers of two tensors of one name do not mean the same thing; empty if they do."""
    codes = [row for row in (a, b) if not row.quantized and row.format in _CODES]
    if len(codes) != 1 or a.shape != b.shape or len(a.shape) < 2:
        return ""
    return (
        f"it is {a.format} in a and {b.format} in b, and the {codes[0].format} tensor has no "
        "scale beside it: compare the values that its own library dequantizes"
    )


def _nothing(a: ComparedModel, b: ComparedModel, unread: Mapping[str, str]) -> str:
    """What to say where nothing can be compared."""
    if unread:
        return f"nothing can be compared: {next(iter(unread.values()))}"
    return (
        f"the two have no tensor in common: {a.path} has {_some(a.rows)}; {b.path} has "
        f"{_some(b.rows)}. Compare two files of the same model"
    )


def _some(names: Collection[str]) -> str:
    text = ", ".join(sorted(names)[:3])
    return text + (f" and {len(names) - 3} more" if len(names) > 3 else "")


class _Errors(NamedTuple):
    signal: float
    noise: float
    largest: float
    odd: int


def _errors(a: Rows, b: Rows, elements: int, run: Map) -> _Errors:
    """Sums over two tensors of one stored shape, slab by slab."""
    cuts = cut_slabs(a.shape, a.blocks + b.blocks, elements)
    work = run(lambda slab: _slab_errors(a.read(cuts, slab), b.read(cuts, slab)), cuts.slabs)
    signal, noise, largest, odd = zip(*work, strict=True)
    return _Errors(math.fsum(signal), math.fsum(noise), max(largest), sum(odd))


def _slab_errors(a: Tensor, b: Tensor) -> _Errors:
    x, y = (side.to(torch.float64).flatten() for side in (a, b))
    finite = x.isfinite() & y.isfinite()
    same = (x == y) | (x.isnan() & y.isnan())
    odd = int((~finite & ~same).sum())
    x, error = torch.where(finite, x, 0.0), torch.where(finite, x - y, 0.0)
    largest = float(error.abs().amax()) if error.numel() else 0.0
    return _Errors(float(x.square().sum()), float(error.square().sum()), largest, odd)


def _difference(name: str, a: TensorSummary, b: TensorSummary, errors: _Errors) -> TensorDifference:
    signal, noise, largest, odd = errors
    sqnr = math.inf
    if noise > 0:
        sqnr = 10 * math.log10(signal / noise) if signal > 0 else -math.inf
    return TensorDifference(name, a.shape, a.format, b.format, a.bits, b.bits, sqnr, largest, odd)
