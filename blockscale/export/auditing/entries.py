# SPDX-License-Identifier: BSD-3-Clause
"""What is found in a file, as a ledger tells it."""

import mmap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from blockscale.core.ledger import Entry
from blockscale.files.metadata import FileError

# What an audit accepts of a file, whoever wrote it: sizes, counts, and errors by name.

MODEL = 4 * 2**30  # bytes of an ONNX file or an ExecuTorch program that are looked at
TEXT = 512 * 2**20  # bytes of JSON in a .pt2 file
ITEMS = 5_000_000  # nodes, tensors and values of one file
RATIO = 200  # how much larger a compressed part may become
WAY = 200  # nodes between a tensor and what computes with it


class DamagedError(ValueError):
    """Bytes that are not what their format says."""


@contextmanager
def file_bytes(path: Path) -> Iterator[memoryview]:
    """The bytes of a file, mapped and not read. Raises FileError if it is empty or too large."""
    size = path.stat().st_size
    if not size:
        raise FileError(f"{path} is empty")
    if size > MODEL:
        raise FileError(f"{path} has {size:,} bytes, an audit reads files of at most {MODEL:,}")
    with path.open("rb") as file:  # the map goes with the last view of it
        yield memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


class ReadBudget:
    """Counts what was read, so that a small file cannot ask for endless work."""

    def __init__(self, items: int = ITEMS):
        self.remaining = items

    def take(self, count: int = 1) -> None:
        """Raises DamagedError when too much was read."""
        self.remaining -= count
        if self.remaining < 0:
            raise DamagedError(f"it has more than {ITEMS:,} parts")


# Bits of an element by the name of its type, of ONNX, safetensors, torch and XNNPACK.
FLOATS = {"float32": 32, "float16": 16, "bfloat16": 16, "float64": 64}
PARTS = (
    "scale", "step", "steps", "outer", "zero_point", "zeros", "offset", "offset_outer",
    "scale_offset", "book", "inner", "reciprocal",
)  # fmt: skip


@dataclass
class FileTensor:
    """A tensor that a file holds.

    name: as the file has it; type: of its elements; bits: of one element
    nbytes: that it takes in the file; reader: what computes with it, in words
    parts: bytes of the scales, zero points and tables that belong to it
    """

    name: str
    type: str
    shape: tuple[int, ...]
    bits: int
    nbytes: int
    elements: int = 0
    reader: str = ""
    low: bool = False  # whether it is a weight in codes
    format: str = ""
    notes: tuple[str, ...] = ()
    parts: int = field(default=0)

    def __post_init__(self) -> None:
        self.elements = self.elements or prod(self.shape)


def owner(name: str) -> str:
    """The layer that a tensor of ours belongs to: of `fc.weight.codes` it is `fc`."""
    last = name.rpartition(".")[2]
    if last in ("codes", "integers", *PARTS):
        name = name.rpartition(".")[0]
    return name.removesuffix(".weight")


def is_part(name: str) -> bool:
    """Whether a tensor is a scale or the like of another, by the names that we write."""
    return name.rpartition(".")[2] in PARTS


def join_parts(tensors: Iterable[FileTensor]) -> list[FileTensor]:
    """The tensors, with scales and the like counted with the codes of the same name."""
    tensors = list(tensors)
    codes = {t.name.rpartition(".")[0]: t for t in tensors if _is_codes(t.name)}
    rest = []
    for tensor in tensors:
        whole = codes.get(tensor.name.rpartition(".")[0])
        if is_part(tensor.name) and whole is not None:
            whole.parts += tensor.nbytes
        else:
            rest.append(tensor)
    return rest


def _is_codes(name: str) -> bool:
    return name.rpartition(".")[2] in ("codes", "integers")


def entry(tensor: FileTensor) -> Entry:
    """The ledger's entry of a tensor."""
    before = 4 * tensor.elements
    size = tensor.nbytes + tensor.parts
    if tensor.low:
        info = tensor.format or f"{tensor.type}"
        return Entry(
            owner(tensor.name), "weight", "quantized", weight=info, notes=tensor.notes,
            elements=tensor.elements, bytes_before=before, bytes_after=size,
            details=tensor.reader or "nothing in the file reads it",
        )  # fmt: skip
    why = ", ".join(filter(None, [_why(tensor), tensor.reader]))
    return Entry(
        tensor.name, "tensor", "kept", reason=why, notes=tensor.notes, elements=tensor.elements,
        bytes_before=tensor.nbytes, bytes_after=size,
    )  # fmt: skip


def _why(tensor: FileTensor) -> str:
    if tensor.type not in FLOATS:
        return f"{tensor.type}, not a quantized weight"
    if len(tensor.shape) < 2 or max(tensor.shape, default=0) == tensor.elements:
        return f"{tensor.type}, a vector such as a bias, a norm's weight or a scale"
    return f"{tensor.type} in the file"
