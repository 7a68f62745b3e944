# SPDX-License-Identifier: BSD-3-Clause
"""What `compare` reads: the tensors of ours and of other producers, a slab of rows at a time."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from blockscale.export.checkpoints import safetensors
from blockscale.export.checkpoints.checkpoint import Checkpoint, Stored
from blockscale.export.checkpoints.gguf.blocks import PLAIN
from blockscale.files.inspect import TensorSummary, inspect
from blockscale.files.metadata import TensorInfo
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


class Side(ExitStack):
    """One of the two: rows {name: what its head tells of a tensor}, unread {name: why not}."""

    path: Path
    rows: dict[str, TensorSummary]
    unread: dict[str, str]

    def stored(self, name: str, layout: str) -> Rows:
        """A tensor's rows, seen in a layout."""
        raise NotImplementedError


class StoredSide(Side):
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


class CheckpointSide(Side):
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
        found, order = self._source[name], self._source.order(name)
        if isinstance(found, Tensor):
            return FloatRows(Held({name: found}), name, layout)
        info = TensorInfo(str(found.format), tuple(found.shape))
        before = None if order is None else Order(order.to(torch.int32))
        rows = QuantizedRows(held_parts(found), info, before)
        whole = rows.whole or layout != "plain"
        return OtherLayoutRows(rows, info, layout) if whole else rows


def _summary(stored: Stored) -> TensorSummary:
    plain = dtype_name(PLAIN[stored.kind][1]) if stored.kind in PLAIN else stored.kind
    fmt, quantized = stored.format or plain, bool(stored.format)
    layout = "plain" if quantized else ""
    shape, count = stored.shape, prod(stored.shape)
    return TensorSummary(stored.name, fmt, shape, count, stored.nbytes, quantized, layout)


class Held:
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
        held: Tensor = self.tensors[name]
        return held

    def chunks(self, name: str) -> Iterator[memoryview]:
        """As `Reader.chunks`, in one piece."""
        yield bytes_of(self.tensors[name].contiguous())


def held_parts(q: QTensor) -> dict[str, Any]:
    """{part: what holds it, its name there} of a QTensor, as of one in files."""
    parts = {"codes": q.packed} | {part: getattr(q.qparams, part) for part in q.format.parts}
    held = Held(parts)
    return {part: (held, part) for part in parts}
