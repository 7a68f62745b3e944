# SPDX-License-Identifier: BSD-3-Clause
"""The largest numerators of tensors that share their outer scale, found before any is quantized.

One pass over each such tensor, whichever shard it is in; what was found is kept as long as a run
lasts. A run that goes on after a kill finds the same numbers in the same files again.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import reduce
from pathlib import Path

import torch
from torch import Tensor

from blockscale.core.parse import parse
from blockscale.files.directory.computed import ComputedWeight, computed_reader
from blockscale.files.directory.plan import ShardPlan, TensorPlan
from blockscale.files.slabs.pool import Map
from blockscale.files.slabs.quantize_tensor import TensorQuantizer
from blockscale.files.slabs.rows import FloatRows
from blockscale.files.stream import Reader, Tensors

Where = dict[str, tuple[str, TensorPlan]]  # {tensor: its shard, and its plan}


def joined_in(shards: Iterable[ShardPlan]) -> Where:
    """All tensors that share their outer scale with others."""
    return {
        tensor.name: (shard.name, tensor)
        for shard in shards
        for tensor in shard.tensors
        if tensor.outer_group
    }


class Tops:
    """What the tensors of a model share."""

    def __init__(self, root: Path, where: Where, run: Map):
        """where: at least those that the tensors which are asked for share with."""
        self._root, self._where, self._run = root, where, run
        self._largest: dict[tuple[str, ...], Tensor] = {}

    def of(self, tensor: TensorPlan) -> Tensor | None:
        """The largest numerator of all that share a tensor's outer scale; None if none do."""
        if not tensor.outer_group:
            return None
        if tensor.outer_group not in self._largest:
            tops = [self._own(name) for name in tensor.outer_group]
            self._largest[tensor.outer_group] = reduce(torch.maximum, tops)
        return self._largest[tensor.outer_group]

    def _own(self, name: str) -> Tensor:
        shard, tensor = self._where[name]
        with self._reader(shard, tensor.weight) as reader:
            assert tensor.info is not None
            rows = FloatRows(reader, name, tensor.info.layout)
            fmt = parse(tensor.info.format)
            return TensorQuantizer(rows.read, rows.shape, fmt, run=self._run).top()

    def _reader(self, shard: str, weight: ComputedWeight | None) -> AbstractContextManager[Tensors]:
        if weight is not None:
            return computed_reader(self._root, weight)
        return Reader(self._root / shard)
