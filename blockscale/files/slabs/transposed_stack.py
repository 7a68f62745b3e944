"""A stored stack [E, k, n] seen as [E, n, k], a matrix at a time."""

from threading import Lock

import torch
from torch import Tensor

from blockscale.files.slabs.cutting import Cuts, Slab
from blockscale.files.stream import Tensors


class TransposedStack:
    """Reads slabs of [E, n, k]; the matrix that was read last is held, in the file's dtype."""

    def __init__(self, reader: Tensors, name: str):
        self._reader, self._name = reader, name
        self._shape = tuple(reader.tensors[name].shape)
        self._lock = Lock()  # slabs are read by several threads
        self._held: tuple[int, Tensor | None] = (-1, None)

    def read(self, cuts: Cuts, slab: Slab) -> Tensor:
        """A slab, with the rank of `cuts.shape`: rows of one matrix, some matrices, or rows of all
        taken as one."""
        rows = self._shape[2]
        if cuts.dim:
            return self._matrix(slab.matrix)[None, slab.start : slab.stop].contiguous()
        if len(cuts.shape) == 3:
            return torch.stack([self._matrix(m) for m in range(slab.start, slab.stop)])
        found = []
        for m in range(slab.start // max(rows, 1), -(-slab.stop // max(rows, 1))):
            start, stop = slab.start - m * rows, slab.stop - m * rows
            found.append(self._matrix(m)[max(start, 0) : stop])
        return torch.cat(found)

    def _matrix(self, m: int) -> Tensor:
        """Matrix m as [n, k]."""
        with self._lock:
            at, matrix = self._held
            if at != m or matrix is None:
                matrix = self._reader.rows(self._name, m, m + 1)[0].mT.contiguous()
                self._held = (m, matrix)
            return matrix
