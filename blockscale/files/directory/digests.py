# SPDX-License-Identifier: BSD-3-Clause
"""SHA-256 of finished files, summed up beside the work on the next ones."""

import hashlib
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Self

from blockscale.core.untrusted import FileError, open_regular
from blockscale.core.work import Closing

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
