"""Measured launch choices, on disk: those shipped for an H200, and what this machine added.

A table is JSON: {"KERNEL|FORMAT|GPU|TRITON": {"M,N,K": [way, settings…]}}. The machine's own lies
in BLOCKSCALE_TUNE_CACHE, by default ~/.cache/blockscale/tune.json, and wins over the shipped one.
Writers take a lock, merge with what is there and rename a finished file over it, so that processes
may write at once and readers never see half of one.
"""

import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import triton

from blockscale.kernels.cuda.replay import replay

Shape = tuple[int, int, int]  # rows of x, outputs, inputs
Entry = list[Any]  # the way's name, then its settings
Table = dict[str, dict[str, Entry]]
T = TypeVar("T")

SHIPPED = Path(__file__).parent / "tuned_h200.json"
_APART = 16.0  # a shape further away than a factor of this in n · k says nothing
_looked_up: dict[tuple[str, Shape], Entry | None] = {}


def cache_file() -> Path:
    """Where this machine's choices are kept."""
    named = os.environ.get("BLOCKSCALE_TUNE_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "blockscale" / "tune.json"


def key(kernel: str, fmt: str, device: str) -> str:
    """What a choice holds for besides the shape. The Triton is named by its minor version."""
    version = ".".join(triton.__version__.split(".")[:2])
    return f"{kernel}|{fmt}|{device}|{version}"


def lookup(kernel: str, fmt: str, shape: Shape, device: str) -> Entry | None:
    """The choice for the nearest measured shape, or None if there is none near."""
    at = key(kernel, fmt, device)
    asked = (at, (_class(shape[0]), shape[1], shape[2]))
    if asked not in _looked_up:
        _looked_up[asked] = nearest(_tables().get(at, {}), asked[1])
    return _looked_up[asked]


def nearest(entries: dict[str, Entry], shape: Shape) -> Entry | None:
    """Of "M,N,K" -> entry, that of the same class of rows and the nearest n and k.

    The rows above the largest measured are as many as those.
    """
    measured = {tuple(int(n) for n in name.split(",")): e for name, e in entries.items()}
    if not measured:
        return None
    rows = min(_class(shape[0]), max(_class(m) for m, _, _ in measured))

    def apart(other: Sequence[int]) -> float:
        """How many times n and k are larger or smaller, multiplied."""
        pairs = [(max(a, 1), max(b, 1)) for a, b in zip(shape[1:], other[1:], strict=True)]
        return math.prod(max(a, b) / min(a, b) for a, b in pairs)

    near = [other for other in measured if _class(other[0]) == rows]
    best = min(near, key=apart, default=None)
    return None if best is None or apart(best) > _APART else measured[best]


def _class(rows: int) -> int:
    """Rows rounded up to a power of two; at most 16 are alike."""
    return max(16, 1 << max(rows - 1, 0).bit_length()) if rows > 1 else 1


@cache
def _tables() -> Table:
    """The shipped table and, over it, this machine's."""
    table = read(SHIPPED)
    for at, entries in read(cache_file()).items():
        table[at] = {**table.get(at, {}), **entries}
    return table


def read(path: Path) -> Table:
    """A table, empty where there is no file. Raises ValueError where it is none."""
    if not path.exists():
        return {}
    try:
        table = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is no table of launch choices ({error}): delete it") from error
    if not isinstance(table, dict):
        raise ValueError(f"{path} is no table of launch choices: delete it")
    return table


def record(choices: Table, path: Path | None = None) -> None:
    """Add choices to the table on disk, and use them from now on.

    path: the table, by default this machine's
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
    forget()


def forget() -> None:
    """Read the tables again at the next lookup."""
    _tables.cache_clear()
    _looked_up.clear()
    replay.forget()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One writer at a time, where the system has locks; else the last writer's entries stay."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fastest(
    candidates: Sequence[T], run: Callable[[T], Any], time: Callable[[Callable[[], Any]], float]
) -> tuple[T, float]:
    """The candidate whose run takes least time.

    A candidate that needs more shared memory or registers than the GPU has is left out. Raises
    ValueError if none runs.
    """
    best: tuple[T, float] | None = None
    for candidate in candidates:
        try:
            spent = time(lambda chosen=candidate: run(chosen))  # type: ignore[misc]
        except triton.runtime.errors.OutOfResources:
            continue
        if best is None or spent < best[1]:
            best = candidate, spent
    if best is None:
        raise ValueError(f"none of {len(candidates)} candidates fits this GPU")
    return best
