"""Which tensors of a run are on the disk for good, so that another run need not do them again.

One JSON object a line, appended. A line is written only after the data it speaks of is on the disk;
waiting for the disk takes milliseconds, so small tensors share one wait.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECONDS = 5.0  # of work that a kill may cost, besides the tensor it interrupts
BYTES = 1 << 28


class Journal:
    """The finished tensors of each shard, and what was noted about them."""

    def __init__(self, path: Path):
        """Reads what earlier runs wrote; a last line that a kill cut short is dropped."""
        self._path = path
        self._pending: list[dict[str, Any]] = []
        self._unwritten, self._since = 0, time.monotonic()
        self._done: dict[str, dict[str, tuple[str, ...]]] = {}
        text = path.read_bytes() if path.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]
        if whole != text:
            os.truncate(path, len(whole))
        for line in whole.splitlines():
            self._remember(json.loads(line))

    def _remember(self, entry: dict[str, Any]) -> None:
        if entry["tensor"] is None:
            self._done.pop(entry["shard"], None)
        else:
            self._done.setdefault(entry["shard"], {})[entry["tensor"]] = tuple(entry["notes"])

    def done(self, shard: str) -> dict[str, tuple[str, ...]]:
        """{tensor: notes} of what is finished in a shard."""
        return self._done.get(shard, {})

    def forget(self, shard: str) -> None:
        """The shard starts anew: what was written of it is gone."""
        if shard in self._done:
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

    def _append(self, entries: list[dict[str, Any]]) -> None:
        with self._path.open("ab") as file:
            file.write("".join(f"{json.dumps(entry)}\n" for entry in entries).encode())
            file.flush()
            os.fsync(file.fileno())
        for entry in entries:
            self._remember(entry)
