# SPDX-License-Identifier: BSD-3-Clause
"""Measured choices on disk: tables that are shipped, and what this machine added.

A table is JSON. Of CUDA's kernels it has {"KERNEL|FORMAT|GPU|TRITON": {"M,N,K": [way, settings…]}},
of the CPU's {"cpu|PROCESSOR|INSTRUCTION SET": {"THREADS": {choice: number}}}. The machine's own is
BLOCKSCALE_TUNE_CACHE, by default ~/.cache/blockscale/tune.json, and wins over the shipped ones.
Writers take a lock, merge with what is there and rename a finished file over it, so that processes
may write at once and readers never see half of one.
"""

import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from blockscale.core.untrusted.files import FileError
from blockscale.core.untrusted.json_text import json_object, read_json
from blockscale.core.untrusted.names import quoted

Table = dict[str, dict[str, Any]]
CPU = "cpu|"  # so begin the keys of the CPU's choices


def named() -> str:
    """The file that BLOCKSCALE_TUNE_CACHE names; empty if it names none."""
    return os.environ.get("BLOCKSCALE_TUNE_CACHE", "")


def cache_file() -> Path:
    """Where this machine's choices are kept."""
    return Path(named()) if named() else Path.home() / ".cache" / "blockscale" / "tune.json"


def read(path: Path) -> Table:
    """A table, empty where there is no file. Raises ValueError where it is none.

    What the names and numbers of an entry mean is checked where they are used (cuda.matmul.choice,
    cpu.tuned).
    """
    if not path.exists():
        return {}
    try:
        table: Table = json_object(read_json(path), "it")
        for at, entries in table.items():
            for shape, entry in json_object(entries, quoted(at)).items():
                (_check_cpu if at.startswith(CPU) else _check_cuda)(at, shape, entry)
    except FileError as error:
        raise ValueError(f"{path} is not a table of launch choices ({error}): delete it") from None
    return table


def _check_cuda(at: str, shape: str, entry: Any) -> None:
    """Raise FileError for what is no shape and entry."""
    if not re.fullmatch(r"[0-9]{1,12},[0-9]{1,12},[0-9]{1,12}", shape):
        raise FileError(f"{quoted(at)}: {quoted(shape)} is not a shape M,N,K")
    name, *numbers = entry if isinstance(entry, list) and entry else [None]
    if not isinstance(name, str) or not all(type(n) is int for n in numbers):
        raise FileError(
            f"{quoted(at)}: {quoted(entry)} is not the name of a kernel and its numbers"
        )


def _check_cpu(at: str, threads: str, entry: Any) -> None:
    """Raise FileError for what is no number of threads and choices."""
    if not re.fullmatch(r"[1-9][0-9]{0,5}", threads):
        raise FileError(f"{quoted(at)}: {quoted(threads)} is not a number of threads")
    if not isinstance(entry, dict) or not all(
        type(n) is int and 0 <= n < 1 << 62 for n in entry.values()
    ):
        raise FileError(f"{quoted(at)}: {quoted(entry)} is not a table of numbers")


def record(choices: Table, path: Path | None = None) -> None:
    """Add choices to the table on disk.

    path: the table, by default this machine's

    Raises ValueError, before anything is written, where what is there is no table.
    """
    path = path or cache_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path):
        table = read(path)
        for at, entries in choices.items():
            table[at] = {**table.get(at, {}), **entries}
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        with os.fdopen(handle, "w") as file:
            file.write(json.dumps(table, indent=0, sort_keys=True) + "\n")
        Path(name).replace(path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One writer at a time, where the system has locks; else the last writer's entries stay."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    place = path.with_suffix(".lock")  # never followed, never emptied: it holds nothing
    try:
        lock = os.open(place, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        raise ValueError(f"{place} cannot be locked ({error.strerror}): delete it") from None
    with os.fdopen(lock, "rb") as held:
        if not stat.S_ISREG(os.fstat(lock).st_mode):
            raise ValueError(f"{place} cannot be locked (it is not a regular file): delete it")
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
