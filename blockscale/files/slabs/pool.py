# SPDX-License-Identifier: BSD-3-Clause
"""Slabs worked on at the same time, one thread each.

Threads for whole slabs, not inside each operation: a slab is many short operations, and
threads that wait for each other after every one of them lose much of their time, nearly all of it
where other processes want the processors too (measured on two shared processors: 20 times slower).
Kernels, reads and digests let go of Python's lock.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Protocol, Self, TypeVar

import torch

from blockscale.core.work import Closing

_THREADS = 64  # at most: each has a slab and its temporaries, about 10 MB

T = TypeVar("T")
R = TypeVar("R")


class Map(Protocol):
    """The builtin `map`, or one that works on several items at the same time."""

    def __call__(self, work: Callable[[T], R], items: Iterable[T], /) -> Iterator[R]:
        """`work` of each item, in their order."""


class Pool(Closing):
    """Threads for slabs; a context manager. Inside them, torch computes on one thread.

    most: threads at most, where what each of them holds is more than a slab
    """

    def __init__(self, most: int = _THREADS):
        self._most = most

    def __enter__(self) -> Self:
        self._before = torch.get_num_threads()
        self._count = min(self._before, self._most)
        self._threads = ThreadPoolExecutor(
            self._count, initializer=torch.set_num_threads, initargs=(1,)
        )
        return self

    def close(self) -> None:
        """End the threads, and give torch its own again."""
        self._threads.shutdown(cancel_futures=True)
        torch.set_num_threads(self._before)

    def map(self, work: Callable[[T], R], items: Iterable[T], /) -> Iterator[R]:
        """`work` of each item in their order; no more than a few are held at a time."""
        pending: deque[Future[R]] = deque()
        try:
            for item in items:
                context = copy_context()  # bs.use(...) of the caller holds in its threads
                pending.append(self._threads.submit(context.run, work, item))
                if len(pending) > self._count:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
