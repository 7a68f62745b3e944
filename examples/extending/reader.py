# SPDX-License-Identifier: BSD-3-Clause
"""numpy's .npz as a checkpoint: codes in int8 with a scale a row, and floats."""

# Goes to:   blockscale/export/checkpoints/npz.py
# Its test:  tests/export/checkpoints/test_npz.py: the producer's own values, to the bit.
# By itself: bs.checkpoint, bs.load, and the commands inspect, convert, compare and report.

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from blockscale.core.parse import parse
from blockscale.export.checkpoints.checkpoint import Checkpoint, Stored
from blockscale.ops.tensor import QTensor, from_parts

_FORMAT = str(parse("int8_channel"))
_CODES, _SCALE = ".int8", ".scale"


def recognize(path: Path) -> str | None:
    """What tells that it is one: its name."""
    return "its name ends in .npz" if path.is_file() and path.suffix == ".npz" else None


class NPZ(Checkpoint):
    """An .npz file: `name.int8` [n, k] with `name.scale` [n] is the tensor `name`, in codes."""

    producer = "numpy"

    def __init__(self, path: Path, evidence: str):
        super().__init__(path, evidence)
        with np.load(path, allow_pickle=False) as file:
            self._arrays = {name: torch.from_numpy(file[name]) for name in file.files}
        for name, each in self._arrays.items():
            shape, nbytes = tuple(each.shape), each.nbytes
            if name.endswith(_CODES):
                stem = name.removesuffix(_CODES)
                nbytes += self._arrays[stem + _SCALE].nbytes
                self.stored[stem] = Stored(stem, "int8", shape, nbytes, _FORMAT)
            elif not name.endswith(_SCALE):
                kind = str(each.dtype).removeprefix("torch.")
                self.stored[name] = Stored(name, kind, shape, nbytes, dtype=each.dtype)

    def _read(self, stored: Stored) -> QTensor | Tensor:
        if stored.format is None:
            return self._arrays[stored.name]
        codes, scale = (self._arrays[stored.name + part] for part in (_CODES, _SCALE))
        parts = {"codes": codes, "scale": scale.reshape(-1, 1)}
        return from_parts(parse(stored.format), stored.shape[-1], parts)


reader = NPZ
