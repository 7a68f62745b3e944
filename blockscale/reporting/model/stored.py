# SPDX-License-Identifier: BSD-3-Clause
"""A model's tensors for a report: what heads say of each, and the tensors themselves when asked."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from glob import escape
from math import prod
from pathlib import Path

from torch import Tensor

from blockscale.core.pack import stored_shape, to_stored
from blockscale.core.work import Closing
from blockscale.export.checkpoints.opening import checkpoint
from blockscale.export.checkpoints.safetensors import Safetensors
from blockscale.files.metadata import FileError
from blockscale.files.stored_model import StoredModel, open_stored_model
from blockscale.layers.before import Before
from blockscale.ops.tensor import QTensor

_KINDS = ("*.safetensors", "*.gguf")
_OF_MANY = re.compile(r"(.+)-\d{5}-of-(\d{5})\.gguf")  # as llama.cpp names the files of one model


@dataclass(frozen=True)
class Row:
    """One tensor as its head tells of it.

    format: a format's spelling, or the dtype of a tensor that is stored as it is
    shape: as quantized; nbytes: of codes, of all that stands beside them and before the layer
    file: the one with its codes; unread: why it cannot be read, or empty
    """

    name: str
    kind: str
    format: str
    quantized: bool
    shape: tuple[int, ...]
    nbytes: int
    file: str
    layout: str = "plain"
    input: str = ""
    output: str = ""
    before: str = ""
    unread: str = ""

    @property
    def elements(self) -> int:
        """How many there are."""
        return prod(self.shape)

    @property
    def bits(self) -> float:
        """Stored bits of an element, scales included."""
        return 8 * self.nbytes / max(self.elements, 1)


class ReportedModel(Closing):
    """A checkpoint of any producer, and of ours what its metadata says besides; a context."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._checkpoint = checkpoint(path)
        self.producer, self.evidence = self._checkpoint.producer, self._checkpoint.evidence
        ours = isinstance(self._checkpoint, Safetensors)
        self._model: StoredModel | None = open_stored_model(path) if ours else None

    def close(self) -> None:
        """Let go of the files."""
        self._checkpoint.close()

    @property
    def files(self) -> list[Path]:
        """The files that hold its tensors."""
        if self._model is not None:
            return sorted(set(self._model.files.values()))
        if self.path.is_dir():
            return sorted(each for kind in _KINDS for each in self.path.glob(kind))
        if (match := _OF_MANY.fullmatch(self.path.name)) is not None:
            return sorted(self.path.parent.glob(f"{escape(match[1])}-*-of-{match[2]}.gguf"))
        return [self.path]

    def rows(self) -> Iterator[Row]:
        """Every tensor, by name."""
        for name, stored in sorted(self._checkpoint.stored.items()):
            row = Row(
                name, stored.kind, stored.format or stored.kind, stored.format is not None,
                stored.shape, stored.nbytes, self._file(name), unread=stored.unread,
            )  # fmt: skip
            yield self._ours(row) if self._is_ours(name) else row

    def __contains__(self, name: str) -> bool:
        return name in self._checkpoint

    def tensor(self, name: str) -> QTensor | Tensor:
        """As quantized, or as stored. Raises FileError for one that is damaged or unread."""
        return self._checkpoint[name]

    def floats(self, row: Row) -> Tensor:
        """The values of the tensor of that name, as floats in the layout of another model's row.

        Raises FileError if there is none, or it has another shape.
        """
        if row.name not in self._checkpoint:
            raise FileError(
                f"{self.path} has no tensor of this name: is it the float model of this one?"
            )
        tensor = self._checkpoint[row.name]
        values = tensor.dequantize() if isinstance(tensor, QTensor) else tensor
        if not values.is_floating_point():
            raise FileError(f"{self.path} has {values.dtype} there, expected floats")
        plain = self._layout(row.name) == "plain"
        fitting = _lay_out(values, row.layout) if plain else values
        if tuple(fitting.shape) != row.shape:
            shapes = f"{tuple(values.shape)}, not one that becomes {row.shape}"
            raise FileError(f"in {self.path} it has the shape {shapes}")
        return fitting

    def before(self, row: Row) -> Before | None:
        """What the layer's input goes through, and so its weight."""
        if self._model is None or not row.before:
            return None
        return self._model.before(row.name.removesuffix(".weight"))

    def _is_ours(self, name: str) -> bool:
        return self._model is not None and name in self._model.metadata.tensors

    def _layout(self, name: str) -> str:
        if self._model is None or not self._is_ours(name):
            return "plain"
        return self._model.metadata.tensors[name].layout

    def _ours(self, row: Row) -> Row:
        assert self._model is not None
        model, owner = self._model, row.name.removesuffix(".weight")
        layer = model.metadata.layers.get(owner, {}) if row.name.endswith(".weight") else {}
        beside = model.before_parts(owner) if layer else {}
        sizes = [model.kinds[name] for name in beside.values()]
        more = sum(prod(shape) * dtype.itemsize for dtype, shape in sizes if dtype is not None)
        return Row(
            row.name, row.kind, row.format, True, row.shape, row.nbytes + more, row.file,
            self._layout(row.name), layer.get("input", ""), layer.get("output", ""),
            layer.get("before", ""), row.unread,
        )  # fmt: skip

    def _file(self, name: str) -> str:
        """The name of the file that holds a tensor's codes, where that is known."""
        if self._model is None:
            return self.path.name if self.path.is_file() else ""
        stored = name
        if self._is_ours(name):
            stored = self._model.parts_of(name)["codes"]
        file = self._model.files.get(stored)
        return file.name if file is not None else ""


def _lay_out(values: Tensor, layout: str) -> Tensor:
    """`to_stored`, or the values as they are where they do not fit the layout."""
    try:
        stored_shape(values.shape, layout)
        return to_stored(values, layout)
    except (ValueError, IndexError, RuntimeError):
        return values
