# SPDX-License-Identifier: BSD-3-Clause
"""Quantize a directory by several processes, on one host or on several that share a file system.

Rank 0 plans, begins every file in its full size and publishes the result; all take pieces of work
from one queue: some tensors of a shard, whose bytes no other piece has. So it makes no difference
for the result how many processes there are, and which of them is slow. Each has a journal of its
own, and a run that was stopped goes on with any number of processes, also with one that is alone.
Before anything is written, every process shows that it sees the same files, recipe and versions.
"""

import hashlib
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from blockscale.core.arithmetic.precision import subnormals_kept
from blockscale.core.format import Format
from blockscale.core.recipe import Recipe
from blockscale.core.untrusted import FileError, open_regular
from blockscale.core.work import Progress
from blockscale.files.directory.beside import work_path
from blockscale.files.directory.folder import is_own
from blockscale.files.directory.journal import Digests, Journal, file_digest
from blockscale.files.directory.output import absolute
from blockscale.files.directory.plan import (
    DirectoryLedger,
    DirectoryPlan,
    ShardPlan,
    Stamp,
    TensorPlan,
    stamp,
)
from blockscale.files.directory.quantize_directory import (
    explain_full_disk,
    plan_directory,
    run_plan,
    start_progress,
)
from blockscale.files.directory.ranks import StoreRanks
from blockscale.files.directory.shard import Quantize, is_finished, tensor_source, write_tensor
from blockscale.files.directory.swap import JOURNAL, OUT
from blockscale.files.directory.tops import Tops, Where, joined_in
from blockscale.files.directory.workspace import PARTIAL, Workspace
from blockscale.files.header import LARGEST, LENGTH, StoredTensor
from blockscale.files.slabs.pool import Pool
from blockscale.files.stream import Reader, StreamWriter
from blockscale.layers.apply import without_data

PIECE = 1 << 28  # bytes of source tensors in a piece of work, or one tensor that is larger
_HASHERS = 4  # threads that look at what an earlier run has finished
_REPORT_BYTES = 1 << 24  # bytes that are written before the others hear of it


def quantize_over_ranks(  # noqa: PLR0913 - as quantize_directory, and the ranks
    source: str | Path,
    target: str | Path,
    recipe: Recipe | Format | Mapping[str, Any] | str | Path,
    ranks: StoreRanks,
    *,
    force: int = 0,
    strict: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> DirectoryLedger | None:
    """`quantize_directory` by all processes of `ranks`, each of which calls this; the same bytes.

    Returns the ledger in rank 0, None in the others. Raises as `quantize_directory`, in every
    process, and FileError where processes see different files, recipes or versions, where one does
    not see the folder that rank 0 writes in, and where one has ended.
    """
    progress = progress or Progress()
    with ranks, ranks.failing_together():
        own_recipe, _ = without_data(Recipe.read(recipe), strict=strict)
        run = SharedRun(ranks, Path(source), absolute(target), own_recipe, seed)
        if ranks.rank:
            run.help()
            return None
        plan = plan_directory(source, target, recipe, strict=strict, seed=seed)
        run.agree([shard.name for shard in plan.shards])
        ledger = run_plan(plan, run.goal, force, progress, run.lead)
        ranks.tell("end", True)
        return ledger


@dataclass(frozen=True)
class ShardPiece:
    """Some tensors of one shard.

    size, layout: of the whole output file, and where in it these tensors' parts go
    where: all tensors that share their outer scale with one of these
    """

    shard: str
    size: int
    layout: dict[str, StoredTensor]
    tensors: tuple[TensorPlan, ...]
    where: Where


def pieces_of(
    shard: ShardPlan, ready: Mapping[str, object], sharers: Where
) -> Iterator[ShardPiece]:
    """What is left to do of a shard; one piece without tensors where only its digest is."""

    def piece(tensors: list[TensorPlan]) -> ShardPiece:
        names = {each.name for each in tensors}
        layout = {
            name: each
            for name, each in shard.layout.items()
            if name in names or name.rpartition(".")[0] in names
        }
        shared = {name for each in tensors for name in each.outer_group}
        return ShardPiece(
            shard.name, shard.size, layout, tuple(tensors), {name: sharers[name] for name in shared}
        )

    rest = [tensor for tensor in shard.tensors if tensor.name not in ready]
    some: list[TensorPlan] = []
    for tensor in rest:
        if some and sum(each.source.nbytes for each in [*some, tensor]) > PIECE:
            yield piece(some)
            some = []
        some.append(tensor)
    if some or not rest:
        yield piece(some)


class SharedRun:
    """One process's part of a run."""

    def __init__(self, ranks: StoreRanks, root: Path, goal: Path, recipe: Recipe, seed: int):
        self.goal = goal
        self._ranks, self._root, self._recipe, self._seed = ranks, root, recipe, seed
        self._stamps: dict[str, Stamp] = {}

    # What all have to agree on before a byte is written.

    def agree(self, names: list[str]) -> None:
        """Rank 0: compare what the others see with what it sees. Raises FileError."""
        self._ranks.tell("names", names)
        own = self._facts(names)
        for rank in range(1, self._ranks.world):
            message = difference(own, self._ranks.hear(f"facts/{rank}", rank))
            if message:
                self._ranks.fail(message.replace("RANK", f"rank {rank}"))

    def _facts(self, names: list[str]) -> dict[str, Any]:
        self._stamps = {name: stamp(self._root / name) for name in names if self._has(name)}
        return {
            "host": socket.gethostname(),
            "blockscale": sys.modules["blockscale"].__version__,
            "torch": torch.__version__,
            "recipe": self._recipe.to_dict(),
            "seed": self._seed,
            "sources": {name: _source(self._root / name) for name in self._stamps},
        }

    def _has(self, name: str) -> bool:
        return (self._root / name).is_file()

    # The parts of rank 0 and of the others.

    def lead(self, plan: DirectoryPlan, work: Workspace, progress: Progress) -> None:
        """Rank 0: begin all files, deal the work, do some of it, and wait for the others."""
        ranks = self._ranks
        shards = _open_shards(plan, work, progress)
        start_progress(plan, work, progress)
        sharers = joined_in(plan.shards)
        pieces: list[ShardPiece] = []
        for shard in shards:
            _begin(shard, work)
            own = list(pieces_of(shard, work.journal.finished_tensors(shard.name), sharers))
            ranks.store.add(f"left/{shard.name}", len(own))
            pieces += own
        pieces.sort(key=lambda each: -max(_nbytes(each) - PIECE, 0))  # large ones first
        for number, piece in enumerate(pieces):
            ranks.tell(f"item/{number}", piece)
        ranks.tell("go", (plan.digest, [shard.name for shard in plan.shards]))
        shared = SharedProgress(ranks, progress)
        self._work(work.path, work.journal, shared)
        for rank in range(1, ranks.world):
            ranks.hear(f"done/{rank}", rank, shared.look)
        shared.look()  # what was written since the last wait, or where none had to wait
        work.join_journals()
        for shard in shards:
            if work.journal.digest(shard.name) is None:
                raise FileError(f"{shard.name} is not finished: run the same command again")

    def help(self) -> None:
        """Another rank: show what it sees, work until nothing is left, and wait for the end."""
        ranks = self._ranks
        ranks.tell(f"facts/{ranks.rank}", self._facts(ranks.hear("names")))
        digest, _ = ranks.hear("go")
        path = work_path(self.goal, digest)
        if not (path / OUT).is_dir() or not is_own(path):
            raise FileError(
                f"{path} is not there, in which rank 0 works: the output has to lie on a file "
                "system that all hosts share, under the same name, and belong to the same user"
            )
        journal = Journal(path / f"{JOURNAL}.{ranks.rank}")
        self._work(path, journal, SharedProgress(ranks, Progress()))
        ranks.tell(f"done/{ranks.rank}", True)
        ranks.hear("end")

    def _work(self, path: Path, journal: Journal, progress: "SharedProgress") -> None:
        where: Where = {}
        with (
            explain_full_disk(self.goal), Pool() as pool, Digests() as digests, subnormals_kept(),
        ):  # fmt: skip
            quantize = Quantize(self._seed, pool.map, Tops(self._root, where, pool.map))
            while (piece := self._ranks.take()) is not None:
                where |= piece.where
                self._write(piece, path / OUT, journal, quantize, progress)
                progress.flush()
                if self._ranks.store.add(f"left/{piece.shard}", -1) == 0:
                    self._sum_up(piece.shard, path / OUT, journal, digests)
                digests.settle()
            digests.settle(wait=True)

    def _write(
        self, piece: ShardPiece, out: Path, journal: Journal, quantize: Quantize, progress: Progress
    ) -> None:
        """Write a piece, and wait until it is on the disk."""
        source, partial = self._root / piece.shard, out / f"{piece.shard}{PARTIAL}"
        with (
            Reader(source) as reader,
            StreamWriter.join(partial, piece.size, piece.layout) as writer,
        ):
            try:
                for tensor in piece.tensors:
                    self._ranks.check()
                    with tensor_source(self._root, tensor, reader) as tensors:
                        notes = write_tensor(tensors, writer, tensor, quantize, progress)
                    nbytes = tensor.source.nbytes
                    journal.add(piece.shard, tensor.name, notes, nbytes, writer.sync)
            finally:  # what is finished is kept, however the run ends
                journal.commit(writer.sync)
        if stamp(source) != self._stamps[piece.shard]:
            raise FileError(
                f"{source} changed while it was read: run the command again when nothing writes "
                "to it"
            )

    def _sum_up(self, shard: str, out: Path, journal: Journal, digests: Digests) -> None:
        """All pieces of a shard are written: it gets its name once its digest is known."""
        partial = out / f"{shard}{PARTIAL}"

        def finish(digest: str) -> None:
            journal.finish(shard, digest)
            partial.rename(out / shard)

        digests.begin(partial, finish)


class SharedProgress(Progress):
    """Counts what all ranks write, and shows it in this one."""

    def __init__(self, ranks: StoreRanks, progress: Progress):
        self._ranks, self._progress = ranks, progress
        self._own = self._total = 0

    def advance(self, name: str = "", amount: int = 1) -> None:
        """As Progress."""
        self._own += amount
        if self._own >= _REPORT_BYTES:
            self.flush(name)

    def flush(self, name: str = "") -> None:
        """Count what is written, and show what all have written since."""
        total = self._ranks.store.add("bytes", self._own)
        self._own = 0
        if total > self._total:
            self._progress.advance(name, total - self._total)
            self._total = total

    def look(self) -> None:
        """Show what the others have written since."""
        self.flush()


def difference(own: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """How another rank, RANK in the words, differs from rank 0; empty if it does not."""
    who = f"RANK on {other['host']}"
    for what in ("blockscale", "torch"):
        if own[what] != other[what]:
            return (
                f"{who} has {what} {other[what]}, rank 0 on {own['host']} has {own[what]}: install "
                "the same version on all hosts"
            )
    for what in ("recipe", "seed"):
        if own[what] != other[what]:
            return (
                f"{who} was given another {what} ({other[what]}) than rank 0 ({own[what]}): run "
                "the same command on all hosts"
            )
    for name, (size, digest) in own["sources"].items():
        if name not in other["sources"]:
            return f"{who} does not see {name} of the model: give all hosts the same files"
        size_there, digest_there = other["sources"][name]
        if size != size_there:
            return (
                f"{who} sees {name} with {size_there} bytes, rank 0 with {size}: give all hosts "
                "the same files"
            )
        if digest != digest_there:
            return (
                f"{who} sees {name} with another header than rank 0: give all hosts the same files"
            )
    return ""


def _source(path: Path) -> tuple[int, str]:
    """The size of a safetensors file, and the digest of its header."""
    file = open_regular(path)
    try:
        length = int.from_bytes(os.pread(file, LENGTH, 0), "little")
        header = os.pread(file, min(length, LARGEST), LENGTH)
        return os.fstat(file).st_size, hashlib.sha256(header).hexdigest()
    finally:
        os.close(file)


def _nbytes(piece: ShardPiece) -> int:
    return sum(tensor.source.nbytes for tensor in piece.tensors)


def _begin(shard: ShardPlan, work: Workspace) -> None:
    """Lay a shard out in its full size, unless an earlier run has."""
    partial = work.partial(shard.name)
    partial.parent.mkdir(parents=True, exist_ok=True)
    with StreamWriter(partial, shard.header, shard.layout) as writer:
        if not writer.is_resumed:
            work.journal.forget(shard.name)
        writer.sync()


def _open_shards(plan: DirectoryPlan, work: Workspace, progress: Progress) -> list[ShardPlan]:
    """The shards that no earlier run has finished; those that one has are summed up at once."""
    there = [
        work.out / shard.name
        for shard in plan.shards
        if (work.out / shard.name).is_file() and not (work.out / shard.name).is_symlink()
    ]
    with ThreadPoolExecutor(_HASHERS) as threads:
        digests = dict(zip(there, threads.map(file_digest, there), strict=True))

    def digest_of(path: Path) -> str:
        return digests[path] if path in digests else file_digest(path)

    return [shard for shard in plan.shards if not is_finished(shard, work, progress, digest_of)]
