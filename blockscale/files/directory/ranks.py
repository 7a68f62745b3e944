# SPDX-License-Identifier: BSD-3-Clause
"""The processes of one run, which talk through the store of torch.distributed that launched them.

No process waits inside the store: each looks there now and then, so that what went wrong in one is
an error in all. The keys of a run:

    names, go, end       what rank 0 tells all: files to look at, work to do, that all is done
    facts/R, done/R      what rank R tells rank 0: what it sees, that it found no more work
    beat/R, bye/R        a number that changes as long as rank R lives; that it leaves
    failed               what went wrong first, and in which rank
    item/N, next         pieces of work, and how many were taken
    left/SHARD, bytes    pieces of a shard that are not written; source bytes that were
"""

import pickle
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Any, NoReturn, Self

from torch import distributed

from blockscale.core.untrusted import FileError
from blockscale.core.work import Closing

BEAT = 2.0  # seconds between signs of life
SILENT = 300.0  # seconds without one, after which a rank is taken for dead
LEAVING = 5.0  # seconds that rank 0 waits for the others at the end
_PAUSE = 0.02  # seconds between two looks


class StoreRanks(Closing):
    """This process, number `rank` of `world`; a context manager, in which it gives signs of life.

    store: of torch.distributed, the same for all; its keys are this run's alone
    """

    def __init__(self, store: Any, rank: int, world: int):
        self.store, self.rank, self.world = store, rank, world
        self._last_beats: dict[int, tuple[bytes, float]] = {}
        self._stop = Event()

    def __enter__(self) -> Self:
        self._beat()
        self._thread = Thread(target=self._live, daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """Be silent; rank 0, in whose process the store may be, lets the others go first."""
        self._stop.set()
        self._thread.join()
        with suppress(RuntimeError):  # the store is gone
            self.store.set(f"bye/{self.rank}", "")
            others = [f"bye/{rank}" for rank in range(1, self.world)]
            end = time.monotonic() + LEAVING
            while not self.rank and not self.store.check(others) and time.monotonic() < end:
                time.sleep(_PAUSE)

    def _live(self) -> None:
        while not self._stop.wait(BEAT):
            try:
                self._beat()
            except RuntimeError:  # the store is gone, and with it the run
                return

    def _beat(self) -> None:
        self.store.add(f"beat/{self.rank}", 1)

    @property
    def name(self) -> str:
        """In errors."""
        return f"rank {self.rank} on {socket.gethostname()}"

    def tell(self, key: str, what: Any) -> None:
        """Something for the others; processes of one run trust each other."""
        self.store.set(key, pickle.dumps(what))

    def hear(self, key: str, of: int = 0, meanwhile: Callable[[], None] | None = None) -> Any:
        """What rank `of` told. Raises FileError once any rank failed, or that one is silent."""
        while not self.store.check([key]):
            self.check()
            if meanwhile is not None:
                meanwhile()
            self._check_alive(of)
            time.sleep(_PAUSE)
        return pickle.loads(self.store.get(key))  # of our own processes

    def check(self) -> None:
        """Raise FileError with what went wrong in another rank, if anything has."""
        if self.store.check(["failed"]):
            raise FileError(self.store.get("failed").decode())

    def _check_alive(self, rank: int) -> None:
        key = f"beat/{rank}"
        beat = self.store.get(key) if self.store.check([key]) else b""
        now = time.monotonic()
        last, since = self._last_beats.setdefault(rank, (beat, now))
        if beat != last:
            self._last_beats[rank] = (beat, now)
        elif now - since > SILENT:
            self.fail(
                f"rank {rank} gave no sign of life for {SILENT:.0f} s: look at its host, and run "
                "the same command again, on any number of processes, to go on"
            )

    def fail(self, message: str) -> NoReturn:
        """End the run in all ranks. Raises FileError with the message."""
        self.announce(message)
        raise FileError(message)

    def announce(self, message: str) -> None:
        """Let all ranks know what went wrong; the first message stays."""
        if self.store.add("failures", 1) == 1:
            self.store.set("failed", message)

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """What ends the block badly ends it in all ranks."""
        try:
            yield
        except BaseException as error:
            message = str(error) if isinstance(error, FileError | ValueError) else repr(error)
            if isinstance(error, KeyboardInterrupt | SystemExit):
                message = "was stopped: run the same command again to go on"
            with suppress(RuntimeError):  # the store is gone, too
                self.announce(f"{self.name}: {message}")
            raise

    def take(self) -> Any | None:
        """The next piece of work; None when there is none left."""
        number = self.store.add("next", 1) - 1
        key = f"item/{number}"
        if not self.store.check([key]):
            return None
        item = pickle.loads(self.store.get(key))  # of our own processes
        self.store.delete_key(key)
        return item


def ranks_of_launcher() -> StoreRanks:
    """This process among those that torchrun started."""
    store, rank, world = next(iter(distributed.rendezvous("env://")))
    return StoreRanks(distributed.PrefixStore("blockscale", store), rank, world)
