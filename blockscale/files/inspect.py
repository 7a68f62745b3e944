# SPDX-License-Identifier: BSD-3-Clause
"""What is in a file or directory: formats, bits per weight, sizes. Only headers are read."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

from blockscale.files.header import StoredTensor
from blockscale.files.stored_model import StoredModel, open_stored_model
from blockscale.files.stream import Reader


@dataclass(frozen=True)
class TensorSummary:
    """One tensor, or all that have one format."""

    name: str
    format: str  # a format's spelling, or the dtype of a tensor that is stored as it is
    shape: tuple[int, ...]
    elements: int
    nbytes: int  # codes, scales, zero points, and what transforms the layer's input
    quantized: bool
    layout: str = ""
    input: str = ""
    output: str = ""
    before: str = ""
    file: str = ""
    tensors: int = 1

    @property
    def bits(self) -> float:
        """Stored bits of an element, scales included."""
        return 8 * self.nbytes / max(self.elements, 1)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self) | {"bits": self.bits}


@dataclass(frozen=True)
class Contents:
    """The tensors of a file or directory; `files` has the size of each file."""

    path: Path
    rows: tuple[TensorSummary, ...]
    files: dict[str, int]

    @property
    def totals(self) -> list[TensorSummary]:
        """One row for each format, largest first."""
        groups: dict[tuple[str, bool], list[TensorSummary]] = {}
        for row in self.rows:
            groups.setdefault((row.format, row.quantized), []).append(row)
        sums = [_sum(fmt, quantized, rows) for (fmt, quantized), rows in groups.items()]
        return sorted(sums, key=lambda row: -row.nbytes)

    @property
    def total(self) -> TensorSummary:
        """All tensors as one row."""
        return _sum("all", any(row.quantized for row in self.rows), list(self.rows))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "path": str(self.path),
            "files": self.files,
            "total": _brief(self.total),
            "formats": [_brief(row) for row in self.totals],
            "tensors": [row.to_dict() for row in self.rows],
        }


def _sum(fmt: str, quantized: bool, rows: list[TensorSummary]) -> TensorSummary:
    elements, nbytes = sum(row.elements for row in rows), sum(row.nbytes for row in rows)
    return TensorSummary(
        "", fmt, (), elements, nbytes, quantized, tensors=sum(row.tensors for row in rows)
    )


def _brief(row: TensorSummary) -> dict[str, Any]:
    keys = ("format", "tensors", "elements", "nbytes", "bits", "quantized")
    return {key: value for key, value in row.to_dict().items() if key in keys}


def inspect(path: str | Path) -> Contents:
    """What the tensors in a safetensors file, or in a directory of them, are, float or quantized.

    Raises FileError if there are none, or a file is damaged, cut short or of a newer version.
    """
    source = open_stored_model(path)
    sizes: dict[str, int] = {}
    tensors: dict[str, StoredTensor] = {}
    for file in dict.fromkeys(source.files.values()):
        with Reader(file) as reader:
            sizes[file.name] = reader.size
            tensors |= reader.tensors
    rows = sorted(
        [*_quantized(source, tensors), *_plain(source, tensors)], key=lambda row: row.name
    )
    return Contents(Path(path), tuple(rows), sizes)


def _quantized(source: StoredModel, tensors: dict[str, StoredTensor]) -> Iterator[TensorSummary]:
    for name, info in source.metadata.tensors.items():
        parts = source.parts_of(name)
        owner = name.removesuffix(".weight")
        layer = source.metadata.layers.get(owner, {})
        beside = source.before_parts(owner)
        nbytes = sum(tensors[part].nbytes for part in (*parts.values(), *beside.values()))
        file = source.files[parts["codes"]].name
        yield TensorSummary(
            name, info.format, info.shape, prod(info.shape), nbytes, True, info.layout,
            layer.get("input", ""), layer.get("output", ""), layer.get("before", ""), file,
        )  # fmt: skip


def _plain(source: StoredModel, tensors: dict[str, StoredTensor]) -> Iterator[TensorSummary]:
    for name in source.plain():
        tensor = tensors[name]
        torch_dtype = tensor.torch_dtype
        dtype = tensor.dtype if torch_dtype is None else str(torch_dtype).removeprefix("torch.")
        file = source.files[name].name
        yield TensorSummary(
            name, dtype, tensor.shape, prod(tensor.shape), tensor.nbytes, False, file=file
        )
