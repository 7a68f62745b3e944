# SPDX-License-Identifier: BSD-3-Clause
"""What each process of tests/files/directory/test_shared_run.py does."""

import errno
import os
import pathlib
import signal
import time
import warnings

import torch
from torch import distributed

from blockscale.core.untrusted import FileError
from blockscale.core.work import Progress, stopped_softly
from blockscale.files.directory import journal, ranks, shared_run
from blockscale.files.directory.ranks import StoreRanks
from blockscale.files.directory.shared_run import quantize_over_ranks
from blockscale.files.slabs import cutting
from blockscale.files.stream import StreamWriter

WORLD = 2


def settings(piece: int = 400) -> None:
    """Many pieces of work and many slabs of small tensors."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    cutting.SLAB, shared_run.PIECE, shared_run._REPORT_BYTES, journal.SECONDS = 150, piece, 100, 0.0
    ranks.LEAVING = 1.0


class Seen(Progress):
    """What was told."""

    def __init__(self):
        self.total = self.done = self.advanced = 0

    def start(self, total, done=0):
        self.total, self.done = total, done

    def advance(self, name="", amount=1):
        self.advanced += amount


def tried(path: pathlib.Path, case: str, store: object, rank: int, **how: object) -> dict:
    """One run: its error in words, and what rank 0 saw."""
    seen = Seen()
    recipe = {"weight": how.pop("recipe", "nvfp4")}
    model = how.pop("model", "model")
    mine = StoreRanks(distributed.PrefixStore(case, store), rank, WORLD)
    out = path / f"out-{case.partition('.')[0]}"
    try:
        ledger = quantize_over_ranks(path / str(model), out, recipe, mine, progress=seen, **how)
    except (ValueError, OSError, SystemExit) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"ledger": ledger is not None, "seen": vars(seen)}


def full_disk(self, data, start):
    """In the place of a write."""
    raise OSError(errno.ENOSPC, "No space left on device")


def stopped_at(number: int):
    """A `take` that gets SIGTERM before it takes piece `number`."""
    taken, take = [], StoreRanks.take

    def counted(self):
        taken.append(1)
        if len(taken) == number:
            os.kill(os.getpid(), signal.SIGTERM)
        return take(self)

    return counted


def waiting_at(number: int):
    """A `take` that leaves piece `number` and all after it to the others, until one fails; the test
    fails where it ends without."""
    taken, take = [], StoreRanks.take

    def counted(self):
        taken.append(1)
        if len(taken) == number:
            wait_for(self, "failed", of=1 - self.rank)
        return take(self)

    return counted


def wait_for(mine: StoreRanks, key: str, of: int) -> None:
    """Wait until there is a key in the store that rank `of` sets, or that rank has left."""
    while not mine.store.check([key]) and not mine.store.check([f"bye/{of}"]):
        time.sleep(0.001)


def work(rank: int, folder: str) -> None:
    """One process: all cases, one after the other."""
    settings()
    path = pathlib.Path(folder)
    store = distributed.FileStore(str(path / "store"), WORLD)
    found = {"plain": tried(path, "plain", store, rank)}
    other = {"recipe": "mxfp4"} if rank else {}
    found["recipe"] = tried(path, "recipe", store, rank, **other)
    found["seed"] = tried(path, "seed", store, rank, seed=rank)
    found["sources"] = tried(path, "sources", store, rank, model="short" if rank else "model")
    found["refused"] = tried(path, "refused", store, rank, recipe="nvfp4", force=0, model="none")
    put, take = StreamWriter._write, StoreRanks.take
    if rank:
        StreamWriter._write = full_disk
    else:
        StoreRanks.take = waiting_at(1)
    found["full"] = tried(path, "full", store, rank)
    StreamWriter._write, StoreRanks.take = put, take
    found["full.again"] = tried(path, "full.again", store, rank)
    StoreRanks.take = stopped_at(2) if rank else waiting_at(3)
    with stopped_softly():
        found["stopped"] = tried(path, "stopped", store, rank)
    StoreRanks.take = take
    torch.save(found, path / f"{rank}.pt")


def killed(rank: int, folder: str) -> None:
    """One of three processes; the last one is killed with its second piece in its hands."""
    settings()
    ranks.SILENT, ranks.BEAT = 2.0, 0.2
    mine = StoreRanks(distributed.FileStore(f"{folder}/killed", 3), rank, 3)
    taken, take = [], StoreRanks.take

    def counted(self):
        taken.append(1)
        if rank < 2 and len(taken) == 2:
            wait_for(self, "killed", of=2)
        piece = take(self)
        if rank == 2 and len(taken) == 2:
            self.store.set("killed", "")
            os.kill(os.getpid(), signal.SIGKILL)
        return piece

    StoreRanks.take = counted
    try:
        quantize_over_ranks(f"{folder}/model", f"{folder}/out", {"weight": "nvfp4"}, mine)
    except FileError as error:
        pathlib.Path(folder, f"error-{rank}").write_text(str(error))


def resumed(rank: int, folder: str) -> None:
    """One of two processes that go on."""
    settings()
    mine = StoreRanks(distributed.FileStore(f"{folder}/resumed", 2), rank, 2)
    seen = Seen()
    quantize_over_ranks(
        f"{folder}/model", f"{folder}/out", {"weight": "nvfp4"}, mine, progress=seen
    )
    if not rank:
        pathlib.Path(folder, "done").write_text(f"{seen.done} {seen.total}")
