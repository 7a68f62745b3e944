# SPDX-License-Identifier: BSD-3-Clause
"""The ceiling of everything that moves bytes: a copy between two tensors that exist already."""

import ctypes
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache, lru_cache

import torch
from torch import Tensor

from blockscale.bench.case import Call, Contestant

PREFIX = "copy: "
_LINE = 64  # bytes of a cache line


def copies(nbytes: int, device: str) -> list[Contestant]:
    """Copies that move `nbytes`, half of it read and half written; the best is the ceiling."""
    half = max(nbytes // 2, 1)
    source, target = (buffer[:half] for buffer in _buffers(_capacity(half), device))
    calls: dict[str, Call] = {"torch": lambda: target.copy_(source)}
    if device == "cpu":
        calls["memcpy in threads"] = _in_threads(target, source, torch.get_num_threads())
    return [
        Contestant(PREFIX + name, "ceiling", call, bytes=2 * half) for name, call in calls.items()
    ]


def _capacity(nbytes: int) -> int:
    return 1 << (nbytes - 1).bit_length()


@lru_cache(maxsize=2)
def _buffers(nbytes: int, device: str) -> tuple[Tensor, Tensor]:
    """Two tensors of bytes, written once so that their pages are there."""
    source, target = (torch.full((nbytes,), i, dtype=torch.uint8, device=device) for i in (1, 2))
    return source, target


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "blockscale-bench-copy")


def _in_threads(target: Tensor, source: Tensor, threads: int) -> Call:
    """The C library's copy, a piece a thread; ctypes lets go of Python's lock."""
    size = source.numel()
    step = -(-size // threads // _LINE) * _LINE
    pieces = [(start, min(step, size - start)) for start in range(0, size, step)]
    to, of = target.data_ptr(), source.data_ptr()

    def piece(start: int, count: int) -> None:
        ctypes.memmove(to + start, of + start, count)

    def run() -> None:
        others = [_pool(threads).submit(piece, *each) for each in pieces[1:]]
        piece(*pieces[0])
        wait(others)

    return run
