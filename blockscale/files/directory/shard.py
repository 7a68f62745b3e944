# SPDX-License-Identifier: BSD-3-Clause
"""Write one safetensors file of a run, tensor by tensor."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from blockscale.core.arithmetic.philox import named_seed
from blockscale.core.parse import parse
from blockscale.core.profiles.knobs import Profile
from blockscale.core.work import Progress
from blockscale.files.directory.computed import computed_reader
from blockscale.files.directory.folder import remove
from blockscale.files.directory.journal import Digests, file_digest
from blockscale.files.directory.plan import DirectoryPlan, ShardPlan, TensorPlan, stamp
from blockscale.files.directory.tops import Tops
from blockscale.files.directory.workspace import Workspace
from blockscale.files.header import tensor_of
from blockscale.files.metadata import FileError
from blockscale.files.slabs.cutting import Cuts, Slab
from blockscale.files.slabs.pool import Map
from blockscale.files.slabs.quantize_tensor import StoredRows, TensorQuantizer
from blockscale.files.slabs.rows import FloatRows, Rows
from blockscale.files.stream import Reader, StreamWriter, Tensors
from blockscale.layers.assembly import beside_rows
from blockscale.layers.saturation import lost_signs, odd_values_note
from blockscale.ops.quantize import quantize


class Quantize(NamedTuple):
    """How tensors are quantized. seed: of a run; run: slabs, several at a time; tops: of tensors
    that share their outer scale."""

    seed: int
    run: Map
    tops: Tops


def finished_bytes(shard: ShardPlan, work: Workspace) -> int:
    """Bytes of a shard's source tensors that an earlier run has written."""
    if not any(path.exists() for path in (work.out / shard.name, work.partial(shard.name))):
        return 0
    tensors = work.journal.finished_tensors(shard.name)
    return sum(tensor.source.nbytes for tensor in shard.tensors if tensor.name in tensors)


def write_shard(
    plan: DirectoryPlan,
    shard: ShardPlan,
    work: Workspace,
    quantize: Quantize,
    digests: Digests,
    progress: Progress,
) -> None:
    """Write what is not yet written of a shard. Raises FileError if its source changes.

    It has its name once its digest is known: settle the digests when all are written.
    """
    if is_finished(shard, work, progress):
        return
    source, partial = plan.files.root / shard.name, work.partial(shard.name)
    partial.parent.mkdir(parents=True, exist_ok=True)
    journal = work.journal
    with Reader(source) as reader, StreamWriter(partial, shard.header, shard.layout) as writer:
        if not writer.is_resumed:
            journal.forget(shard.name)
        try:
            for tensor in shard.tensors:
                if tensor.name not in journal.finished_tensors(shard.name):
                    with tensor_source(plan.files.root, tensor, reader) as tensors:
                        notes = write_tensor(tensors, writer, tensor, quantize, progress)
                    journal.add(shard.name, tensor.name, notes, tensor.source.nbytes, writer.sync)
                digests.settle()  # of the shards before
        finally:  # what is finished is kept, also when Ctrl-C or a full disk ends the run
            journal.commit(writer.sync)
        check_source(plan, shard)

        def finish(digest: str) -> None:
            journal.finish(shard.name, digest)
            partial.rename(work.out / shard.name)

        digests.begin(partial, finish)  # beside the wait for the disk, and the next shard
        writer.sync()


def check_source(plan: DirectoryPlan, shard: ShardPlan) -> None:
    """Raise FileError if the file that a shard is made of is not the one that was planned with."""
    source = plan.files.root / shard.name
    if not source.exists() or stamp(source) != shard.stamp:
        raise FileError(
            f"{source} changed while it was read: run the command again when nothing writes to it"
        )


def is_finished(
    shard: ShardPlan,
    work: Workspace,
    progress: Progress,
    digest_of: Callable[[Path], str] = file_digest,
) -> bool:
    """Whether an earlier run finished a shard, and what lies there is what it wrote."""
    there = work.out / shard.name
    if not os.path.lexists(there):
        return False
    digest = work.journal.digest(shard.name)
    if digest is not None and not there.is_symlink() and digest_of(there) == digest:
        return True
    progress.say(f"{there} is not what an earlier run finished: it is written again")
    remove(there)
    remove(work.partial(shard.name))
    work.journal.forget(shard.name)
    return False


def tensor_source(
    root: Path, tensor: TensorPlan, reader: Reader
) -> AbstractContextManager[Tensors]:
    """What a tensor is read from."""
    if tensor.weight is None:
        return nullcontext(reader)
    return computed_reader(root, tensor.weight)


def write_tensor(
    reader: Tensors,
    writer: StreamWriter,
    tensor: TensorPlan,
    quantize: Quantize,
    progress: Progress,
) -> tuple[str, ...]:
    """Quantize or copy one tensor; returns what is to be noted of it."""
    name = tensor.name
    if tensor.info is None:
        offset = 0
        for chunk in reader.chunks(name):
            writer.chunk(name, offset, chunk)
            offset += len(chunk)
            progress.advance(name, len(chunk))
        return ()
    rows, fmt = FloatRows(reader, name, tensor.info.layout), parse(tensor.info.format)
    seed, run = named_seed(quantize.seed, name), quantize.run
    if tensor.profile is not None:
        quantizer: TensorQuantizer | ByProfile = ByProfile(rows, name, tensor.profile)
    else:
        quantizer = TensorQuantizer(rows.read, rows.shape, fmt, seed, run=run)
    if (top := quantize.tops.of(tensor)) is not None:
        quantizer.share(top)
    whole, written_bytes = tensor_of(*tensor.info.parts()["codes"]).nbytes, 0
    for part, row, piece in quantizer.pieces():
        writer.rows(f"{name}.{part}", row, piece)
        if part == "codes":
            before, written_bytes = written_bytes, written_bytes + piece.nbytes
            share = [tensor.source.nbytes * end // whole for end in (before, written_bytes)]
            progress.advance(name, share[1] - share[0])
    return quantizer.notes


# Quantize one tensor as a producer does: whole, since its rules may look at all of it.


class ByProfile:
    """In the place of a TensorQuantizer. `notes` is complete when `pieces` is exhausted."""

    def __init__(self, rows: Rows, name: str, profile: Profile):
        self._rows, self._name, self._profile = rows, name, profile
        self._top: Tensor | None = None
        self.notes: tuple[str, ...] = ()

    def share(self, top: Tensor) -> None:
        """Take the outer scale of all whose largest numerator this is."""
        self._top = top

    def pieces(self) -> Iterator[StoredRows]:
        """All that is stored. Raises ValueError, with the tensor's name, where the producer does
        not take it."""
        count = self._rows.shape[0]
        x = self._rows.read(Cuts(self._rows.shape, 0, count), Slab(0, count))
        try:
            q = beside_rows(
                x, self._profile.format, self._top, lambda x: quantize(x, self._profile)
            )
        except ValueError as error:
            raise ValueError(f"{self._name}: {error}") from None
        odd = odd_values_note(x)
        self.notes = (*([odd] if odd else []), *lost_signs("weight", x, q.format))
        for part in q.format.parts:
            yield StoredRows(part, 0, getattr(q.qparams, part))
        yield StoredRows("codes", 0, q.packed)
