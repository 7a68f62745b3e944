# SPDX-License-Identifier: BSD-3-Clause
"""Which tensors of a run are on the disk for good, so that another run need not do them again.

One JSON object a line, appended. A line is written only after the data it speaks of is on the disk;
waiting for the disk takes milliseconds, so small tensors share one wait.
"""

import json
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from blockscale.core.untrusted import FileError, parse_json, read_regular, set_aside

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
        self._done: dict[str, dict[str, tuple[str, ...]]] = {}
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
            self._done, self._digests = {}, {}
            warnings.warn(
                f"{path}, the journal of an earlier run, is damaged ({error}): it is kept as "
                f"{set_aside(path).name}, and the current shard starts again",
                stacklevel=2,
            )

    def _remember(self, entry: dict[str, Any]) -> None:
        if "digest" in entry:
            self._digests[entry["shard"]] = str(entry["digest"])
        elif entry["tensor"] is None:
            self._done.pop(entry["shard"], None)
            self._digests.pop(entry["shard"], None)
        else:
            self._done.setdefault(entry["shard"], {})[entry["tensor"]] = tuple(entry["notes"])

    def done(self, shard: str) -> dict[str, tuple[str, ...]]:
        """{tensor: notes} of what is finished in a shard."""
        return self._done.get(shard, {})

    def digest(self, shard: str) -> str | None:
        """SHA-256 of a finished shard, in hexadecimal; None for one that is not finished."""
        return self._digests.get(shard)

    def finish(self, shard: str, digest: str) -> None:
        """All of a shard is on the disk, and this is its SHA-256."""
        self._append([{"shard": shard, "digest": digest}])

    def forget(self, shard: str) -> None:
        """The shard starts anew: what was written of it is gone."""
        if shard in self._done or shard in self._digests:
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
            for shard, tensors in journal._done.items()
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
