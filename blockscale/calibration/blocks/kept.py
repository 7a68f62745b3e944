# SPDX-License-Identifier: BSD-3-Clause
"""Tensors that are kept for a while: in memory, and beyond a budget in files."""

import tempfile
from collections.abc import Hashable
from itertools import count
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from blockscale.core.work.closing import Closing


class Kept(Closing):
    """Tensors by key. What exceeds `budget` bytes lies in safetensors files, one a tensor, in a
    temporary directory that only its user can read and that `close` deletes.
    """

    def __init__(self, budget: float):
        self.budget, self.held = budget, 0
        self._in_memory: dict[Hashable, Tensor] = {}
        self._on_disk: dict[Hashable, tuple[Path, torch.device]] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._numbers = count()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._in_memory or key in self._on_disk

    def put(self, key: Hashable, tensor: Tensor) -> None:
        """Keep a tensor, in the place of what had its key."""
        self.drop(key)
        tensor = tensor.detach()
        if self.held + tensor.nbytes <= self.budget:
            self._in_memory[key] = tensor
            self.held += tensor.nbytes
            return
        if self._folder is None:  # mkdtemp: nobody else can read it
            self._folder = tempfile.TemporaryDirectory(prefix="blockscale-blocks-")
        path = Path(self._folder.name) / f"{next(self._numbers)}.safetensors"
        safetensors.torch.save_file({"x": tensor.contiguous()}, path)
        self._on_disk[key] = path, tensor.device

    def get(self, key: Hashable) -> Tensor:
        """A tensor: the one that was put in, or one read from its file."""
        if key in self._in_memory:
            return self._in_memory[key]
        path, device = self._on_disk[key]
        return safetensors.torch.load_file(path)["x"].to(device)

    def on_disk(self, key: Hashable) -> bool:
        """Whether `get` reads it from a file, a new tensor each time."""
        return key in self._on_disk

    def drop(self, key: Hashable) -> None:
        """Keep it no longer, if it is there."""
        if key in self._in_memory:
            self.held -= self._in_memory.pop(key).nbytes
        elif key in self._on_disk:
            self._on_disk.pop(key)[0].unlink()

    def close(self) -> None:
        """Keep nothing any longer."""
        self._in_memory, self._on_disk, self.held = {}, {}, 0
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
