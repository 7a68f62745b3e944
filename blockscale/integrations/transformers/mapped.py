"""Memory of files that are mapped: pages that were read count as the process's until they are let
go. transformers maps a checkpoint and keeps it open until its last tensor is read."""

import ctypes
import mmap
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

_MAPS = Path("/proc/self/maps")
_ENOUGH = 1 << 23  # bytes of floats, beside whose codes several times as many were used


def real_paths(files: Iterable[str]) -> frozenset[str]:
    """The paths of files as the system calls them: links are followed."""
    return frozenset(str(Path(file).resolve()) for file in files)


def let_go(tensor: Tensor, files: frozenset[str]) -> None:
    """Tell the system that the pages of a tensor that lies in one of these files are not needed for
    now: who reads them again gets them from the file.

    files: of `real_paths`; their mappings have to be as they were made, unwritten.
    Anywhere but on Linux nothing is done.
    """
    if tensor.device.type != "cpu" or not _MAPS.exists() or not tensor.nbytes:
        return
    start = tensor.untyped_storage().data_ptr()
    end = start + tensor.untyped_storage().nbytes()
    if not _in_file(start, end, files):
        return
    first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first:
        _libc().madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED)


def give_back(freed: int) -> int:
    """Return memory that was freed to the system, now and then; what is freed since then.

    glibc keeps freed memory below what is still used, and codes lie between floats that are gone.
    Returning it takes milliseconds.
    """
    if freed < _ENOUGH:
        return freed
    if trim := getattr(_libc(), "malloc_trim", None):
        trim(0)
    return 0


def _in_file(start: int, end: int, files: frozenset[str]) -> bool:
    """Whether these addresses lie in a mapping of one of these files."""
    for line in _MAPS.read_text().splitlines():
        place, _, _, _, _, *path = line.split(maxsplit=5)
        low, high = (int(each, 16) for each in place.split("-"))
        if low <= start and end <= high:
            return bool(path) and path[0] in files
    return False


@cache
def _libc() -> Any:
    return ctypes.CDLL(None)
