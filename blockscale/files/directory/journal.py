# SPDX-License-Identifier: BSD-3-Clause
"""Which tensors of a run are on the disk for good, so that another run need not do them again, and
SHA-256 of finished files, summed up beside the work on the next ones.

One JSON object a line, appended. A line is written only after the data it speaks of is on the disk;
waiting for the disk takes milliseconds, so small tensors share one wait.
"""

import hashlib
import json
import os
import time
import warnings
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any, Self

from blockscale.core.untrusted import (
    FileError,
    open_regular,
    parse_json,
    read_regular,
    set_aside,
)
from blockscale.core.work import Closing

SECONDS = 5.0  # of work that a kill may cost, besides the tensor it interrupts
BYTES = 1 << 28
LARGEST = 1 << 30  # bytes of a journal: a line has a hundred


class Journal:
    """The finished tensors of each shard, what was noted about them, and what shards sum up to."""

    def __init__(self, path: Path):
        """Reads what earlier runs wrote; a last line that a kill cut short is dropped."""
        self._path = path
        self._pending: list[dict[str, Any]] = []
        self._unwritten, self._since = 0, time.monotonic()
        self._tensors: dict[str, dict[str, tuple[str, ...]]] = {}
        self._digests: dict[str, str] = {}
        if path.is_symlink():
            raise FileError(f"{path} is a link, expected the journal of a run: delete it")
        text = read_regular(path, LARGEST) if path.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]
        if whole != text:
            os.truncate(path, len(whole))
        try:
            for line in whole.splitlines():
                self._remember(parse_json(line, "a line"))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._tensors, self._digests = {}, {}
            warnings.warn(
                f"{path}, the journal of an earlier run, is damaged ({error}): it is kept as "
                f"{set_aside(path).name}, and the current shard starts again",
                stacklevel=2,
            )

    def _remember(self, entry: dict[str, Any]) -> None:
        if "digest" in entry:
            self._digests[entry["shard"]] = str(entry["digest"])
        elif entry["tensor"] is None:
            self._tensors.pop(entry["shard"], None)
            self._digests.pop(entry["shard"], None)
        else:
            self._tensors.setdefault(entry["shard"], {})[entry["tensor"]] = tuple(entry["notes"])

    def finished_tensors(self, shard: str) -> dict[str, tuple[str, ...]]:
        """{tensor: notes} of what is finished in a shard."""
        return self._tensors.get(shard, {})

    def digest(self, shard: str) -> str | None:
        """SHA-256 of a finished shard, in hexadecimal; None for one that is not finished."""
        return self._digests.get(shard)

    def finish(self, shard: str, digest: str) -> None:
        """All of a shard is on the disk, and this is its SHA-256."""
        self._append([{"shard": shard, "digest": digest}])

    def forget(self, shard: str) -> None:
        """The shard starts anew: what was written of it is gone."""
        if shard in self._tensors or shard in self._digests:
            self._append([{"shard": shard, "tensor": None, "notes": ()}])

    def add(
        self, shard: str, tensor: str, notes: tuple[str, ...], nbytes: int, sync: Callable[[], None]
    ) -> None:
        """A tensor is written; `sync` waits until its file is on the disk."""
        self._pending.append({"shard": shard, "tensor": tensor, "notes": notes})
        self._unwritten += nbytes
        if self._unwritten >= BYTES or time.monotonic() - self._since >= SECONDS:
            self.commit(sync)

    def commit(self, sync: Callable[[], None]) -> None:
        """Wait for the data, then write down what it holds."""
        if self._pending:
            sync()
            self._append(self._pending)
            self._pending = []
        self._unwritten, self._since = 0, time.monotonic()

    def absorb(self, other: Path) -> None:
        """Take over what another journal has, and delete it."""
        journal = Journal(other)
        entries: list[dict[str, Any]] = [
            {"shard": shard, "tensor": tensor, "notes": notes}
            for shard, tensors in journal._tensors.items()
            for tensor, notes in tensors.items()
        ]
        digests = journal._digests.items()
        self._append([*entries, *({"shard": s, "digest": digest} for s, digest in digests)])
        other.unlink(missing_ok=True)

    def _append(self, entries: list[dict[str, Any]]) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        with os.fdopen(os.open(self._path, flags, 0o600), "ab") as file:
            file.write("".join(f"{json.dumps(entry)}\n" for entry in entries).encode())
            file.flush()
            os.fsync(file.fileno())
        for entry in entries:
            self._remember(entry)


# Digests.

_CHUNK = 1 << 20  # bytes that are read at a time
_THREADS = 4  # each sums up 1.3 GB a second, which is less than many processors write


def file_digest(path: Path, stop: Callable[[], bool] | None = None) -> str:
    """SHA-256 of a file's bytes, in hexadecimal. Raises FileError for a link and for no file.

    stop: asked now and then; where it says so, InterruptedError ends it.
    """
    if path.is_symlink():
        raise FileError(f"{path} is a link, expected a file: delete it")
    digest, buffer = hashlib.sha256(), memoryview(bytearray(_CHUNK))
    with os.fdopen(open_regular(path), "rb", buffering=0) as file:
        while size := file.readinto(buffer):
            if stop is not None and stop():
                raise InterruptedError(f"{path} was not read to its end")
            digest.update(buffer[:size])  # hashlib lets other threads run meanwhile
    return digest.hexdigest()


class Digests(Closing):
    """A few threads that sum files up, settled in their order; a context manager.

    What is not settled when it ends is given up: the next run sums it up.
    """

    def __enter__(self) -> Self:
        self._stop = Event()
        self._thread = ThreadPoolExecutor(_THREADS)
        self._pending: deque[tuple[Future[str], Callable[[str], None]]] = deque()
        return self

    def close(self) -> None:
        """Give up what is not summed up."""
        self._stop.set()
        self._thread.shutdown(cancel_futures=True)

    def begin(self, path: Path, then: Callable[[str], None]) -> None:
        """Sum up a file that is not written to any more; `settle` gives `then` what came out."""
        self._pending.append((self._thread.submit(file_digest, path, self._stop.is_set), then))

    def settle(self, wait: bool = False) -> None:
        """Go on with the files that are summed up; with `wait`, once all are."""
        while self._pending and (wait or self._pending[0][0].done()):
            future, then = self._pending.popleft()
            then(future.result())
