# SPDX-License-Identifier: BSD-3-Clause
"""A directory's computed weights, folded as a model's are: where the parts are, and the values."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from math import prod
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from blockscale.core.reference import FLOATS
from blockscale.files.directory.model_files import ModelFiles
from blockscale.files.header import StoredTensor
from blockscale.files.stream import Reader, bytes_of
from blockscale.layers.computed_files import ComputedInFile, stored_computed

_ROWS = 1 << 22  # elements of a weight that is copied, computed at a time


class ComputedWeight(NamedTuple):
    """A weight that a layer computes, and that may be quantized in place of its parts.

    tensor: as it would be stored
    shard:  the file that it comes to: that of its largest part
    files:  those that its parts are in, in their order
    nbytes: of all parts
    """

    definition: ComputedInFile
    tensor: StoredTensor
    shard: str
    files: tuple[str, ...]
    nbytes: int

    @property
    def elements(self) -> int:
        """Of all parts."""
        return self.nbytes // (self.tensor.nbytes // prod(self.tensor.shape))


def computed_weights(files: ModelFiles) -> dict[str, ComputedWeight]:
    """{name: a computed weight}, of all shards together."""
    where: dict[str, str] = {}
    tensors: dict[str, StoredTensor] = {}
    shared: set[str] = set()
    for shard in files.shards:
        with Reader(files.root / shard) as reader:
            shared |= where.keys() & reader.tensors.keys()  # which plan._check_names refuses
            where |= dict.fromkeys(reader.tensors, shard)
            tensors |= reader.tensors
            shared |= {*reader.metadata.values()}  # of two layers, as save_model writes them
    weights = stored_computed({name: each.shape for name, each in tensors.items()})
    return {
        name: _weight(each, tensors, where)
        for name, each in weights.items()
        if _one_dtype([tensors[part] for part in each.parts]) and not shared & {*each.parts}
    }


def _one_dtype(parts: list[StoredTensor]) -> bool:
    return len({part.dtype for part in parts}) == 1 and parts[0].torch_dtype in FLOATS


def _weight(
    each: ComputedInFile, tensors: Mapping[str, StoredTensor], where: Mapping[str, str]
) -> ComputedWeight:
    files = tuple(where[part] for part in each.parts)
    nbytes = sum(tensors[part].nbytes for part in each.parts)
    return ComputedWeight(each, tensors[each.parts[0]], files[0], files, nbytes)


def as_folded(
    shard: str, tensors: Mapping[str, StoredTensor], weights: Mapping[str, ComputedWeight]
) -> dict[str, StoredTensor]:
    """The tensors of a shard with computed weights in place of their parts."""
    parts = {part: each for each in weights.values() for part in each.definition.parts}
    folded: dict[str, StoredTensor] = {}
    for name, tensor in tensors.items():
        each = parts.get(name)
        if each is None:
            folded[name] = tensor
        elif each.shard == shard:
            folded[each.definition.name] = each.tensor
    return folded


@contextmanager
def computed_reader(root: Path, weight: ComputedWeight) -> Iterator["ComputedReader"]:
    """A computed weight as if its file held it; the files of its parts are open meanwhile."""
    with ExitStack() as stack:
        readers = {name: stack.enter_context(Reader(root / name)) for name in {*weight.files}}
        yield ComputedReader(weight, [readers[name] for name in weight.files])


class ComputedReader:
    """Reads a computed weight like files.stream.Reader."""

    def __init__(self, weight: ComputedWeight, readers: Sequence[Reader]):
        """readers: of the weight's parts, in their order."""
        self._definition = weight.definition
        self.tensors = {weight.definition.name: weight.tensor}
        self._parts = list(zip(readers, weight.definition.parts, strict=True))
        dtype = weight.tensor.torch_dtype
        by_rows = dtype is not None and weight.definition.by_rows(dtype)
        # at once and with this thread's threads, as a model in memory computes it
        self._whole = None if by_rows else self._rows(0, weight.tensor.shape[0])

    def _rows(self, start: int, stop: int) -> Tensor:
        """Rows of the value, where all of it or where rows of the parts give them."""
        if (start, stop) == (0, next(iter(self.tensors.values())).shape[0]):
            return self._definition.value(*(reader.tensor(name) for reader, name in self._parts))
        return self._definition.value(*(reader.rows(n, start, stop) for reader, n in self._parts))

    def rows(
        self, name: str, start: int, stop: int, shape: tuple[int, ...] | None = None
    ) -> Tensor:
        """Rows [start, stop) of the weight, seen as `shape`: as `Reader.rows`."""
        own = self.tensors[name].shape
        shape = own if shape is None else shape
        row, per = prod(shape[1:]), prod(own[1:])
        first, last = start * row // per, -(-stop * row // per)
        values = self._rows(first, last) if self._whole is None else self._whole[first:last]
        flat = values.reshape(-1)[start * row - first * per : stop * row - first * per]
        return flat.reshape(stop - start, *shape[1:])

    def tensor(self, name: str) -> Tensor:
        """The whole of the weight."""
        return self.rows(name, 0, self.tensors[name].shape[0])

    def chunks(self, name: str) -> Iterator[memoryview]:
        """Its bytes, a few MB at a time."""
        own = self.tensors[name].shape
        rows = max(_ROWS // prod(own[1:]), 1)
        for start in range(0, own[0], rows):
            values = self.rows(name, start, min(start + rows, own[0]))
            yield bytes_of(values.contiguous())
