"""Tensors of a file as rows of their stored layout, a few at a time."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from blockscale.core.block import WHOLE
from blockscale.core.layout import from_stored, stored_shape, to_stored
from blockscale.core.parse import parse
from blockscale.export.checkpoint import Checkpoint
from blockscale.export.metadata import TensorInfo
from blockscale.export.slabs import unit_rows
from blockscale.export.stream import Reader
from blockscale.ops import primitives

if TYPE_CHECKING:
    from pathlib import Path


class Rows(Protocol):
    """A tensor that can be read in pieces of its first stored dimension.

    shape: as stored; rank 0 has one row
    unit:  where a piece may start: at the multiples of this
    """

    shape: tuple[int, ...]
    unit: int

    def read(self, start: int, stop: int) -> Tensor:
        """Rows [start, stop) -> [stop - start, ...]."""


class FloatRows:
    """A tensor that is stored as it is, seen in a layout."""

    unit = 1

    def __init__(
        self, reader: Reader, name: str, layout: str = "plain", shape: tuple[int, ...] | None = None
    ):
        """shape: of the rows, where leading dimensions are to be seen as one."""
        self._reader, self._name, self._layout = reader, name, layout
        self.shape = shape or stored_shape(reader.tensors[name].shape, layout)
        self._whole: Tensor | None = None
        if layout == "transposed":  # a slab of columns would lie scattered over the whole tensor
            self._whole = to_stored(reader.tensor(name), layout)

    def read(self, start: int, stop: int) -> Tensor:
        """Rows [start, stop) in the file's dtype."""
        if self._whole is not None:
            return self._whole[start:stop].contiguous()
        if self._layout == "channels_last":
            return to_stored(self._reader.rows(self._name, start, stop), self._layout)
        return self._reader.rows(self._name, start, stop, self.shape)


class QuantizedRows:
    """A quantized tensor, dequantized row by row to float32."""

    def __init__(self, parts: Mapping[str, tuple[Reader, str]], info: TensorInfo):
        """parts: {part: the file it is in, its name there}."""
        self._parts, self._info, self._fmt = parts, info, parse(info.format)
        self.shape = stored_shape(info.shape, info.layout)
        self._whole = len(self.shape) < 2  # codes of a vector are packed along its rows
        self._rows, self._outer_rows = unit_rows(self._fmt, len(self.shape))
        self.unit = self._outer_rows or self._rows or 1
        if self._whole:
            self.unit = max(self.shape[0] if self.shape else 1, 1)

    def read(self, start: int, stop: int) -> Tensor:
        """Rows [start, stop) in float32; `start` is a multiple of `unit`."""
        packed = self._part("codes", 1, start, stop)
        scale = self._part("scale", self._rows, start, stop)
        assert packed is not None and scale is not None
        zero_point = self._part("zero_point", self._rows, start, stop)
        outer = self._part("outer", self._outer_rows, start, stop)
        size = self.shape[-1] if self.shape else 1
        values: Tensor = primitives.dequantize(
            packed, scale, zero_point, outer, str(self._fmt), size, torch.float32
        )
        return values

    def _part(self, part: str, rows: int, start: int, stop: int) -> Tensor | None:
        """What belongs to rows [start, stop) of a part of which one row serves `rows` of them."""
        if part not in self._parts:
            return None
        reader, name = self._parts[part]
        if self._whole or rows == WHOLE:
            return reader.tensor(name)
        return reader.rows(name, start // rows, (stop + rows - 1) // rows)


class OtherLayoutRows:
    """A quantized tensor seen in a layout that it is not stored in: dequantized as a whole."""

    unit = 1

    def __init__(self, rows: QuantizedRows, info: TensorInfo, layout: str):
        self.shape = stored_shape(info.shape, layout)
        count = rows.shape[0] if rows.shape else 1
        self._values = to_stored(from_stored(rows.read(0, count), info.layout, info.shape), layout)

    def read(self, start: int, stop: int) -> Tensor:
        """Rows [start, stop) in float32."""
        return self._values[start:stop]


class OpenCheckpoint(ExitStack):
    """A checkpoint whose files are opened when they are first asked for, and closed together."""

    def __init__(self, checkpoint: Checkpoint):
        super().__init__()
        self._checkpoint = checkpoint
        self._readers: dict[Path, Reader] = {}

    def rows(self, name: str, layout: str) -> Rows:
        """A tensor, quantized or not, seen in a layout."""
        info = self._checkpoint.metadata.tensors.get(name)
        if info is None:
            return FloatRows(self._reader(name), name, layout)
        parts = self._checkpoint.parts_of(name)
        rows = QuantizedRows({part: (self._reader(n), n) for part, n in parts.items()}, info)
        return rows if layout == info.layout else OtherLayoutRows(rows, info, layout)

    def _reader(self, stored: str) -> Reader:
        path = self._checkpoint.files[stored]
        if path not in self._readers:
            self._readers[path] = self.enter_context(Reader(path))
        return self._readers[path]
