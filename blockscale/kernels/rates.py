# SPDX-License-Identifier: BSD-3-Clause
"""What a machine does at best, measured: copies, and products of matrices."""

import json
import os
import re
import stat
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.operand import operand, quantizer
from blockscale.core.pack import pack
from blockscale.core.parse import parse
from blockscale.core.untrusted import FileError, json_object, quote, read_json
from blockscale.kernels.registry import supporting, unavailable

# Measured choices on disk: tables that are shipped, and what this machine added.
#
# A table is JSON. Of CUDA's kernels it has {"KERNEL|FORMAT|GPU|TRITON": {"M,N,K": [way,
# settings…]}},
# of the CPU's {"cpu|PROCESSOR|INSTRUCTION SET": {"THREADS": {choice: number}}}. The machine's own
# is
# BLOCKSCALE_TUNE_CACHE, by default ~/.cache/blockscale/tune.json, and wins over the shipped ones.
# Writers take a lock, merge with what is there and rename a finished file over it, so that
# processes
# may write at once and readers never see half of one.

Table = dict[str, dict[str, Any]]
CPU = "cpu|"  # so begin the keys of the CPU's choices


def override() -> str:
    """The file that BLOCKSCALE_TUNE_CACHE names; empty if it names none."""
    return os.environ.get("BLOCKSCALE_TUNE_CACHE", "")


def cache_file() -> Path:
    """Where this machine's choices are kept."""
    return Path(override()) if override() else Path.home() / ".cache" / "blockscale" / "tune.json"


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
            for shape, entry in json_object(entries, quote(at)).items():
                (_check_cpu if at.startswith(CPU) else _check_cuda)(at, shape, entry)
    except FileError as error:
        raise ValueError(f"{path} is not a table of launch choices ({error}): delete it") from None
    return table


def _check_cuda(at: str, shape: str, entry: Any) -> None:
    """Raise FileError for what is no shape and entry."""
    if not re.fullmatch(r"[0-9]{1,12},[0-9]{1,12},[0-9]{1,12}", shape):
        raise FileError(f"{quote(at)}: {quote(shape)} is not a shape M,N,K")
    name, *numbers = entry if isinstance(entry, list) and entry else [None]
    if not isinstance(name, str) or not all(type(n) is int for n in numbers):
        raise FileError(f"{quote(at)}: {quote(entry)} is not the name of a kernel and its numbers")


def _check_cpu(at: str, threads: str, entry: Any) -> None:
    """Raise FileError for what is no number of threads and choices."""
    if not re.fullmatch(r"[1-9][0-9]{0,5}", threads):
        raise FileError(f"{quote(at)}: {quote(threads)} is not a number of threads")
    if not isinstance(entry, dict) or not all(
        type(n) is int and 0 <= n < 1 << 62 for n in entry.values()
    ):
        raise FileError(f"{quote(at)}: {quote(entry)} is not a table of numbers")


def record(choices: Table, path: Path | None = None) -> None:
    """Add choices to the table on disk.

    path: the table, by default this machine's

    Raises ValueError, before anything is written, where what is there is no table.
    """
    path = path or cache_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    with _lock(path):
        table = read(path)
        for at, entries in choices.items():
            table[at] = {**table.get(at, {}), **entries}
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        with os.fdopen(handle, "w") as file:
            file.write(json.dumps(table, indent=0, sort_keys=True) + "\n")
        Path(name).replace(path)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
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
    with os.fdopen(lock, "rb") as file:
        if not stat.S_ISREG(os.fstat(lock).st_mode):
            raise ValueError(f"{place} cannot be locked (it is not a regular file): delete it")
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


COPIED = 64 << 20  # bytes read, and as many written: beyond any last-level cache but the largest
SIZE = 1024  # of square matrices
_ROUNDS = 7


@dataclass(frozen=True)
class Rates:
    """Medians of some seconds on one device; None where a product cannot run.

    device: torch's name of it
    copy: bytes read and written a second by a copy of COPIED bytes
    float32, bfloat16: torch's products of SIZE² matrices, in multiplications and additions a second
    int8: the same of our kernel, int8_channel weights and int8_token inputs, quantizing included
    """

    device: str
    copy: float
    float32: float
    bfloat16: float | None
    int8: float | None


def rates(device: str = "cpu") -> Rates:
    """The rates of a device, on torch's number of threads. About a second.

    Raises ValueError for a device other than "cpu" and "cuda" with a number.
    """
    kind = device.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"cannot measure rates of device {device!r}; choose from cpu, cuda")
    source = torch.ones(COPIED, dtype=torch.uint8, device=device)
    target = torch.ones_like(source)
    copy = 2 * COPIED / _seconds(lambda: target.copy_(source), device)
    operations = 2 * SIZE**3
    a, b = (torch.randn(SIZE, SIZE, device=device) for _ in range(2))
    low = [each.bfloat16() for each in (a, b)]
    int8 = _int8(a, b, kind)
    return Rates(
        device,
        copy,
        operations / _seconds(lambda: a @ b.T, device),
        operations / _seconds(lambda: low[0] @ low[1].T, device),
        None if int8 is None else operations / _seconds(int8, device),
    )


def _int8(x: Tensor, weight: Tensor, backend: str) -> Callable[[], Any] | None:
    """Our product of 8-bit integers; None where no kernel runs it."""
    if unavailable(backend) is not None:
        return None
    stored, fmt = parse("int8_channel"), parse("int8_token")
    qparams = reference.choose_qparams(weight, stored)
    codes = pack(reference.quantize(weight, qparams, stored), stored.element)
    weight_codes = operand(codes.contiguous(), qparams, stored.spelling, weight.shape[-1])
    by = quantizer(None, fmt.spelling, None)
    arguments = (x, weight_codes, None, by)
    kernel = supporting("linear", backend, (stored.spelling, fmt.spelling), arguments)
    return None if kernel is None else lambda: kernel.run(*arguments)


def _seconds(run: Callable[[], Any], device: str) -> float:
    """The median of some calls, after one that prepares."""
    run()
    _wait(device)
    samples = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        run()
        _wait(device)
        samples.append(time.perf_counter() - start)
    return statistics.median(samples)


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)
