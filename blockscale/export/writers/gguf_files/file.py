# SPDX-License-Identifier: BSD-3-Clause
"""A GGUF file that is written a tensor at a time, each in its place."""

import os
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from blockscale.export.checkpoints.gguf.blocks import GRIDS, PLAIN, TYPES
from blockscale.export.checkpoints.gguf.together import blocks_of
from blockscale.export.writers.gguf_files.head import Place, lay_out
from blockscale.export.writers.producers.gguf import kind_of
from blockscale.export.writers.writer import Planned
from blockscale.files.stream import bytes_of
from blockscale.ops.tensor import QTensor

_GRIDS = {name: (number, each, size) for number, (name, each, size) in GRIDS.items()}
_PLAIN = {dtype: (name, number) for name, (number, dtype) in PLAIN.items()}


class GGUFFile:
    """A file. `write` each tensor once; `close` ends it."""

    def __init__(
        self,
        path: Path,
        tensors: Sequence[Planned],
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
            self._put(memoryview(header), 0)
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
        self._put(data, place.start)

    def _put(self, data: memoryview, start: int) -> None:
        done = 0
        while done < len(data):
            done += os.pwrite(self._file, data[done:], start + done)

    def close(self) -> None:
        """Have everything on the disk."""
        getattr(os, "fdatasync", os.fsync)(self._file)
        self.abandon()

    def abandon(self) -> None:
        """Give the file back."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def size_of(tensor: Planned, told: str = "") -> int:
    """Bytes of a tensor in a file. told: its type in another file, where two hold one format."""
    return _place(tensor, _kind(tensor, told)).nbytes


def _kind(tensor: Planned, told: str) -> str:
    if tensor.grid:
        return tensor.grid
    if tensor.format is None:
        return _PLAIN[tensor.dtype][0]
    kind = kind_of(tensor.format, told)
    assert kind is not None, tensor
    return kind


def _place(tensor: Planned, kind: str) -> Place:
    if kind in PLAIN:
        number, dtype = PLAIN[kind]
        return Place(tensor.shape, number, prod(tensor.shape) * dtype.itemsize)
    if kind in _GRIDS:
        number, each, size = _GRIDS[kind]
        return Place(tensor.shape, number, prod(tensor.shape) // each * size)
    of = TYPES[kind]
    return Place(tensor.shape, of.number, prod(tensor.shape) // of.elements * of.size)


def rope_factors(rope: Mapping[str, float], size: int) -> Tensor:
    """What llama 3 divides the frequencies of positions by, float32 [size / 2].

    rope: the settings of transformers, `rope_type` llama3; size: of a head. As transformers'
    modeling_rope_utils.py computes it, and llama.cpp's converter.
    """
    factor, old = float(rope["factor"]), float(rope["original_max_position_embeddings"])
    low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
    found = []
    for i in range(0, size, 2):
        length = 2 * torch.pi * float(rope.get("rope_theta", 10_000.0)) ** (i / size)
        if length < old / high:
            found.append(1.0)
        elif length > old / low:
            found.append(factor)
        else:
            smooth = (old / length - low) / (high - low)
            found.append(1 / ((1 - smooth) / factor + smooth))
    return torch.tensor(found, dtype=torch.float32)
