# SPDX-License-Identifier: BSD-3-Clause
"""Tensors of a file, a slab at a time, in the layout that they have when they are quantized."""

from collections.abc import Mapping
from threading import Lock
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from blockscale.core.arithmetic.sums import SumInteger
from blockscale.core.cuts import Sizes, block_sizes, can_be_cut
from blockscale.core.operand import operand
from blockscale.core.pack import from_stored, inputs_first, stored_shape, to_stored
from blockscale.core.parse import parse
from blockscale.core.recipe import read_bias
from blockscale.core.reference import QParams
from blockscale.core.work import Closing
from blockscale.files.metadata import TensorInfo
from blockscale.files.slabs.cutting import (
    Cuts,
    Region,
    Slab,
)
from blockscale.files.stored_model import StoredModel
from blockscale.files.stream import Reader, Tensors
from blockscale.layers.before import Before
from blockscale.ops import primitives
from blockscale.ops.batching import within_rows

if TYPE_CHECKING:
    from pathlib import Path


class Rows(Protocol):
    """A tensor that can be read in slabs.

    shape:  as stored
    blocks: sizes of the blocks that a slab must not cut
    """

    shape: tuple[int, ...]
    blocks: tuple[Sizes, ...]

    def read(self, cuts: Cuts, slab: Slab) -> Tensor:
        """A slab, with the rank of `shape`."""


class FloatRows:
    """A tensor that is stored as it is, seen in a layout."""

    blocks: tuple[Sizes, ...] = ()

    def __init__(self, reader: Tensors, name: str, layout: str = "plain"):
        self._reader, self._name, self._layout = reader, name, layout
        self.shape = stored_shape(reader.tensors[name].shape, layout)
        self._whole: Tensor | None = None
        self._stack: TransposedStack | None = None
        if inputs_first(layout) and len(self.shape) > 2:
            self._stack = TransposedStack(reader, name, self.shape)
        elif inputs_first(layout):  # a slab of columns would lie scattered over the whole tensor
            self._whole = to_stored(reader.tensor(name), layout)

    def read(self, cuts: Cuts, slab: Slab) -> Tensor:
        """A slab in the file's dtype; `cuts` may see leading dimensions as one."""
        if self._stack is not None:
            return self._stack.read(cuts, slab)
        if self._whole is not None:
            return self._whole[slab.start : slab.stop].contiguous()
        if self._layout == "channels_last":
            return to_stored(self._reader.rows(self._name, slab.start, slab.stop), self._layout)
        region = slice(slab.matrix, slab.matrix + 1), slice(slab.start, slab.stop)
        return _read(self._reader, self._name, region if cuts.dim else region[1:], cuts.shape)


def _read(reader: Tensors, name: str, region: Region, shape: tuple[int, ...]) -> Tensor:
    """A region of a tensor of `shape`: rows of dimension 0, or of dimension 1 at one index of 0."""
    if len(region) < 2:
        start, stop = (region[0].start, region[0].stop) if region else (0, 1)
        return reader.rows(name, start, stop, shape)
    first = region[0].start * shape[1]
    flat = (shape[0] * shape[1], *shape[2:])
    return reader.rows(name, first + region[1].start, first + region[1].stop, flat)[None]


class QuantizedRows:
    """A quantized tensor, dequantized to float32."""

    def __init__(
        self,
        parts: Mapping[str, tuple[Reader, str]],
        info: TensorInfo,
        before: Before | None = None,
    ):
        """parts: {part: the file it is in, its name there}.

        before: what the layer's input goes through; rows are those of the original weight.
        """
        self._parts, self._before = parts, before
        self.shape = stored_shape(info.shape, info.layout)
        self._fmt = within_rows(parse(info.format), self.shape)
        rank = len(self.shape)
        self.whole = not can_be_cut(self._fmt)
        self._sizes = {} if self.whole else block_sizes(self._fmt, rank)
        self.blocks: tuple[Sizes, ...] = tuple(self._sizes.values())

    def read(self, cuts: Cuts, slab: Slab) -> Tensor:
        """A slab in float32; where `whole` says so, it can only be all of it."""
        shapes = {part: shape for part, (_, shape) in self._fmt.stored(self.shape).items()}
        parts = {
            part: self._part(part, self._sizes.get(part, ()), shapes[part], cuts, slab)
            for part in self._fmt.parts
        }
        shape = self._parts["codes"][0].tensors[self._parts["codes"][1]].shape
        packed = self._part("codes", tuple(1 for _ in self.shape), shape, cuts, slab)
        size = self.shape[-1] if self.shape else 1
        stored = operand(packed, QParams(**parts), self._fmt, size)
        values: Tensor = primitives.dequantize(stored, torch.float32)
        return values if self._before is None else self._before.from_weight(values)

    def _part(
        self, part: str, sizes: Sizes, shape: tuple[int, ...], cuts: Cuts, slab: Slab
    ) -> Tensor:
        """What a slab needs of a part of `shape` that has one entry for each block of `sizes`."""
        reader, name = self._parts[part]
        if len(self.shape) < 2 or self.whole:  # one slab: codes are packed along a vector's row
            return reader.tensor(name).reshape(shape)
        return _read(reader, name, cuts.region(slab, sizes), shape)


class OtherLayoutRows:
    """A quantized tensor that is dequantized as a whole: seen in a layout that it is not stored in,
    or in blocks over the flattened tensor that end within rows."""

    blocks: tuple[Sizes, ...] = ()

    def __init__(self, rows: QuantizedRows, info: TensorInfo, layout: str):
        self.shape = stored_shape(info.shape, layout)
        count = max(rows.shape[0], 1)
        values = rows.read(Cuts(rows.shape, 0, count), Slab(0, rows.shape[0]))
        self._values = to_stored(from_stored(values, info.layout, info.shape), layout)

    def read(self, cuts: Cuts, slab: Slab) -> Tensor:
        """A slab in float32."""
        if cuts.dim:
            return self._values[slab.matrix : slab.matrix + 1, slab.start : slab.stop]
        return self._values[slab.start : slab.stop]


class BiasRows:
    """A bias in steps of its layer's sums: a vector, which is one slab."""

    blocks: tuple[Sizes, ...] = ()

    def __init__(self, parts: Mapping[str, tuple[Reader, str]], info: TensorInfo, kind: SumInteger):
        self._parts, self._kind = (parts["codes"], parts["scale"]), kind
        self.shape = info.shape

    def read(self, cuts: Cuts, slab: Slab) -> Tensor:
        """All of it in float32."""
        del cuts, slab
        codes, scale = (reader.tensor(name) for reader, name in self._parts)
        return self._kind.decode(codes, scale)


class OpenStoredModel(Closing):
    """A stored model whose files are opened when they are first asked for, and closed together;
    who asks after that opens them again. Several threads may ask."""

    def __init__(self, source: StoredModel):
        self._source = source
        self._readers: dict[Path, Reader] = {}
        self._lock = Lock()

    def close(self) -> None:
        """Give the files back."""
        while self._readers:
            self._readers.popitem()[1].close()

    def rows(self, name: str, layout: str) -> Rows:
        """A tensor, quantized or not, seen in a layout."""
        info = self._source.metadata.tensors.get(name)
        if info is None:
            return FloatRows(self.reader(name), name, layout)
        parts = self._source.parts_of(name)
        before = self._source.before(name.removesuffix(".weight"))
        readers = {part: (self.reader(n), n) for part, n in parts.items()}
        kind = read_bias(info.format)
        if isinstance(kind, SumInteger):
            return BiasRows(readers, info, kind)
        rows = QuantizedRows(readers, info, before)
        if layout == info.layout and not rows.whole:
            return rows
        return OtherLayoutRows(rows, info, layout)

    def reader(self, stored: str) -> Reader:
        """The file in which a tensor is stored, open."""
        path = self._source.files[stored]
        with self._lock:
            if path not in self._readers:
                self._readers[path] = Reader(path)
            return self._readers[path]


# A stored stack [E, k, n] seen as [E, n, k], a matrix at a time.


class TransposedStack:
    """Reads slabs of [E, n, k]; the matrix that was read last is held, in the file's dtype."""

    def __init__(self, reader: Tensors, name: str, shape: tuple[int, ...]):
        """shape: [E, n, k]; it is stored as [E, k, n], or [E * k, n]."""
        self._reader, self._name = reader, name
        self._shape = (shape[0], shape[2], shape[1])
        self._lock = Lock()  # slabs are read by several threads
        self._last: tuple[int, Tensor | None] = (-1, None)

    def read(self, cuts: Cuts, slab: Slab) -> Tensor:
        """A slab, with the rank of `cuts.shape`: rows of one matrix, some matrices, or rows of all
        taken as one."""
        rows = self._shape[2]
        if cuts.dim:
            return self._matrix(slab.matrix)[None, slab.start : slab.stop].contiguous()
        if len(cuts.shape) == 3:
            return torch.stack([self._matrix(m) for m in range(slab.start, slab.stop)])
        matrices = []
        for m in range(slab.start // max(rows, 1), -(-slab.stop // max(rows, 1))):
            start, stop = slab.start - m * rows, slab.stop - m * rows
            matrices.append(self._matrix(m)[max(start, 0) : stop])
        return torch.cat(matrices)

    def _matrix(self, m: int) -> Tensor:
        """Matrix m as [n, k]."""
        with self._lock:
            at, matrix = self._last
            if at != m or matrix is None:
                matrix = self._reader.rows(self._name, m, m + 1, self._shape)[0].mT.contiguous()
                self._last = (m, matrix)
            return matrix
