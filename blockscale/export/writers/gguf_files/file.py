# SPDX-License-Identifier: BSD-3-Clause
"""A GGUF file that is written a tensor at a time, each in its place."""

import os
import struct
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from blockscale.export.checkpoints.gguf.records import GRIDS, PLAIN, TYPES, blocks_of
from blockscale.export.writers import PlannedTensor
from blockscale.export.writers.gguf import kind_of
from blockscale.files.stream import bytes_of
from blockscale.ops.tensor import QTensor

# The first bytes of a GGUF file, version 3 (ggml's docs/gguf.md): keys, values, tensors.

ALIGNMENT = 32
STRING, ARRAY = 8, 9
_LETTERS = {
    "u8": (0, "B"), "u16": (2, "H"), "u32": (4, "I"), "i32": (5, "i"), "f32": (6, "f"),
    "bool": (7, "?"), "u64": (10, "Q"),
}  # fmt: skip


class MetadataValue(NamedTuple):
    """A value with its type: "u8" to "u64", "i32", "f32", "bool", "text", or lists of these."""

    kind: str
    value: Any


class TensorPlace(NamedTuple):
    """A tensor in the file. shape: outermost dimension first; start: in the file."""

    shape: tuple[int, ...]
    number: int
    nbytes: int
    start: int = 0


def encoded(value: MetadataValue) -> bytes:
    """A value's type and bytes."""
    kind, what = value
    if not isinstance(what, list):
        return struct.pack("<I", _number(kind)) + _plain(kind, what)
    start = struct.pack("<IIQ", ARRAY, _number(kind), len(what))
    return start + b"".join(_plain(kind, each) for each in what)


def _number(kind: str) -> int:
    return STRING if kind == "text" else _LETTERS[kind][0]


def _plain(kind: str, what: Any) -> bytes:
    if kind == "text":
        return text(what)
    return struct.pack("<" + _LETTERS[kind][1], what)


def text(what: str) -> bytes:
    """A text's length and bytes; what was no UTF-8 when it was read is the same again."""
    data = what.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(data)) + data


def lay_out(
    metadata: Mapping[str, bytes], tensors: Mapping[str, TensorPlace], step: int = ALIGNMENT
) -> tuple[bytes, dict[str, TensorPlace]]:
    """The file's first bytes, up to the first tensor, and where each tensor goes.

    metadata: {key: what `encoded` gave, or a file's own bytes}; step: general.alignment
    """
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    head += [text(key) + data for key, data in metadata.items()]
    starts, end = {}, 0
    for name, (shape, number, nbytes, _) in tensors.items():
        starts[name] = end
        dims: Sequence[int] = tuple(reversed(shape))
        place = struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, number, end)
        head.append(text(name) + place)
        end += -(-nbytes // step) * step
    start = b"".join(head)
    start += bytes(-len(start) % step)
    places = {n: each._replace(start=len(start) + starts[n]) for n, each in tensors.items()}
    return start, places


_GRIDS = {name: (number, each, size) for number, (name, each, size) in GRIDS.items()}
_PLAIN = {dtype: (name, number) for name, (number, dtype) in PLAIN.items()}


class GGUFFile:
    """A file. `write` each tensor once; `close` ends it."""

    def __init__(
        self,
        path: Path,
        tensors: Sequence[PlannedTensor],
        metadata: Mapping[str, bytes],
        step: int,
        kinds: Mapping[str, str],
    ):
        """Write the head and reserve the space.

        metadata: {key: type and value}; step: general.alignment; kinds: {name: the type that it had
        in another GGUF file}, where two types hold one format
        """
        self.first = path  # of one file or several: what a reader is given
        self.kinds = {t.name: _kind(t, kinds.get(t.name, "")) for t in tensors}
        places = {t.name: _place(t, self.kinds[t.name]) for t in tensors}
        header, self._places = lay_out(metadata, places, step)
        ends = [p.start + -(-p.nbytes // step) * step for p in self._places.values()]
        size = max([len(header), *ends])
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file, 0, size)
            else:
                os.ftruncate(self._file, size)
            self._write(memoryview(header), 0)
        except BaseException:
            self.abandon()
            raise

    def write(self, name: str, value: QTensor | Tensor) -> None:
        """One tensor of the plan."""
        place = self._places[name]
        if isinstance(value, QTensor):
            value = blocks_of(value, TYPES[self.kinds[name]])
        data = bytes_of(value.contiguous())
        assert len(data) == place.nbytes, (name, len(data), place)
        self._write(data, place.start)

    def _write(self, data: memoryview, start: int) -> None:
        offset = 0
        while offset < len(data):
            offset += os.pwrite(self._file, data[offset:], start + offset)

    def close(self) -> None:
        """Have everything on the disk."""
        getattr(os, "fdatasync", os.fsync)(self._file)
        self.abandon()

    def abandon(self) -> None:
        """Give the file back."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def size_of(tensor: PlannedTensor, kind: str = "") -> int:
    """Bytes of a tensor in a file. told: its type in another file, where two hold one format."""
    return _place(tensor, _kind(tensor, kind)).nbytes


def _kind(tensor: PlannedTensor, text: str) -> str:
    if tensor.grid:
        return tensor.grid
    if tensor.format is None:
        return _PLAIN[tensor.dtype][0]
    kind = kind_of(tensor.format, text)
    assert kind is not None, tensor
    return kind


def _place(tensor: PlannedTensor, kind: str) -> TensorPlace:
    if kind in PLAIN:
        number, dtype = PLAIN[kind]
        return TensorPlace(tensor.shape, number, prod(tensor.shape) * dtype.itemsize)
    if kind in _GRIDS:
        number, each, size = _GRIDS[kind]
        return TensorPlace(tensor.shape, number, prod(tensor.shape) // each * size)
    of = TYPES[kind]
    return TensorPlace(tensor.shape, of.number, prod(tensor.shape) // of.elements * of.size)


def rope_factors(rope: Mapping[str, float], size: int) -> Tensor:
    """What llama 3 divides the frequencies of positions by, float32 [size / 2].

    rope: the settings of transformers, `rope_type` llama3; size: of a head. As transformers'
    modeling_rope_utils.py computes it, and llama.cpp's converter.
    """
    factor, old = float(rope["factor"]), float(rope["original_max_position_embeddings"])
    low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
    results = []
    for i in range(0, size, 2):
        length = 2 * torch.pi * float(rope.get("rope_theta", 10_000.0)) ** (i / size)
        if length < old / high:
            results.append(1.0)
        elif length > old / low:
            results.append(factor)
        else:
            smooth = (old / length - low) / (high - low)
            results.append(1 / ((1 - smooth) / factor + smooth))
    return torch.tensor(results, dtype=torch.float32)


# A model in several GGUF files, as llama.cpp's gguf-split lays them out and its loader finds them.
#
# NAME-00001-of-00003.gguf has the metadata, each file `split.no`, `split.count` and
# `split.tensors.count` (of all files together), by which programs know what belongs together.

_MOST = 2**16 - 1  # split.count is a u16
_IN_EACH = ("general.alignment",)  # each file's head says where its own tensors lie


class SplitGGUF:
    """Files of at most so many bytes of tensors. `write` each tensor once; `close` ends them."""

    def __init__(  # noqa: PLR0913 - as GGUFFile, and where it is split
        self,
        folder: Path,
        name: str,
        tensors: Sequence[PlannedTensor],
        metadata: Mapping[str, bytes],
        step: int,
        kinds: Mapping[str, str],
        size: int,
    ):
        """Write all heads and reserve the space.

        name: what the files' names begin with; size: bytes of tensors in a file, but for a tensor
        that is larger. Raises ValueError for more files than the format can count.
        """
        shards = split_shards(tensors, kinds, size)
        if len(shards) > _MOST:
            many = f"{len(shards)} files of {size} bytes are more than the {_MOST} that GGUF allows"
            raise ValueError(f"{many}: choose a larger --shard-size")
        self._files: dict[str, GGUFFile] = {}
        self._all: list[GGUFFile] = []
        paths = [
            folder / f"{name}-{i:05}-of-{len(shards):05}.gguf" for i in range(1, len(shards) + 1)
        ]
        self.first = paths[0]
        own = {key: data for key, data in metadata.items() if key in _IN_EACH}
        try:
            for i, (path, shard) in enumerate(zip(paths, shards, strict=True)):
                details = {
                    "split.no": encoded(MetadataValue("u16", i)),
                    "split.count": encoded(MetadataValue("u16", len(shards))),
                    "split.tensors.count": encoded(MetadataValue("i32", len(tensors))),
                }
                file = GGUFFile(path, shard, (own if i else dict(metadata)) | details, step, kinds)
                self._all.append(file)
                self._files |= {each.name: file for each in shard}
        except BaseException:
            self.abandon()
            raise

    def write(self, name: str, value: QTensor | Tensor) -> None:
        """One tensor of the plan."""
        self._files[name].write(name, value)

    def close(self) -> None:
        """Have everything on the disk."""
        for file in self._all:
            file.close()

    def abandon(self) -> None:
        """Give the files back."""
        for file in self._all:
            file.abandon()


def split_shards(
    tensors: Sequence[PlannedTensor], kinds: Mapping[str, str], size: int
) -> list[list[PlannedTensor]]:
    """Tensors in their order, as many together as `size` bytes hold, and at least one."""
    shards: list[list[PlannedTensor]] = [[]]
    shard_bytes = 0
    for tensor in tensors:
        nbytes = size_of(tensor, kinds.get(tensor.name, ""))
        if shards[-1] and shard_bytes + nbytes > size:
            shards.append([])
            shard_bytes = 0
        shards[-1].append(tensor)
        shard_bytes += nbytes
    return shards
