"""Write one safetensors file of a run, tensor by tensor."""

from blockscale.core.arithmetic.philox import named_seed
from blockscale.core.parse import parse
from blockscale.core.progress import Progress
from blockscale.files.directory.plan import DirectoryPlan, ShardPlan, TensorPlan, stamp
from blockscale.files.directory.workspace import Workspace
from blockscale.files.header import sized
from blockscale.files.metadata import FileError
from blockscale.files.slabs.pool import Map
from blockscale.files.slabs.quantize_tensor import TensorQuantizer
from blockscale.files.slabs.rows import FloatRows
from blockscale.files.stream import Reader, Writer


def finished_bytes(shard: ShardPlan, work: Workspace) -> int:
    """Bytes of a shard's source tensors that an earlier run has written."""
    if not any(path.exists() for path in (work.out / shard.name, work.partial(shard.name))):
        return 0
    done = work.journal.done(shard.name)
    return sum(tensor.source.nbytes for tensor in shard.tensors if tensor.name in done)


def write_shard(
    plan: DirectoryPlan, shard: ShardPlan, work: Workspace, run: Map, progress: Progress
) -> None:
    """Write what is not yet written of a shard. Raises FileError if its source changes."""
    if (work.out / shard.name).exists():
        return
    source, partial = plan.files.root / shard.name, work.partial(shard.name)
    partial.parent.mkdir(parents=True, exist_ok=True)
    journal = work.journal
    with Reader(source) as reader, Writer(partial, shard.header, shard.placed) as writer:
        if not writer.resumed:
            journal.forget(shard.name)
        try:
            for tensor in shard.tensors:
                if tensor.name not in journal.done(shard.name):
                    notes = _write_tensor(reader, writer, tensor, plan.seed, run, progress)
                    journal.add(shard.name, tensor.name, notes, tensor.source.nbytes, writer.sync)
        finally:  # what is finished is kept, also when Ctrl-C or a full disk ends the run
            journal.commit(writer.sync)
        writer.sync()
    if stamp(source) != shard.stamp:
        raise FileError(
            f"{source} changed while it was read: run the command again when it is at rest"
        )
    partial.rename(work.out / shard.name)


def _write_tensor(
    reader: Reader, writer: Writer, tensor: TensorPlan, seed: int, run: Map, progress: Progress
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
    quantizer = TensorQuantizer(rows.read, rows.shape, fmt, named_seed(seed, name), run=run)
    whole, done = sized(*tensor.info.parts()["codes"]).nbytes, 0
    for part, row, piece in quantizer.pieces():
        writer.rows(f"{name}.{part}", row, piece)
        if part == "codes":
            before, done = done, done + piece.nbytes
            share = [tensor.source.nbytes * end // whole for end in (before, done)]
            progress.advance(name, share[1] - share[0])
    return quantizer.notes
