"""How a tensor is cut into slabs of rows, and slabs worked on at the same time, one thread each.

Threads for whole slabs, not inside each operation: the reference is many short operations, and
threads that wait for each other after every one of them lose much of their time, nearly all of it
where other processes want the processors too (measured on two shared processors: 20 times slower).
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from math import prod
from types import TracebackType
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

from blockscale.core.block import WHOLE, Block
from blockscale.core.format import Format
from blockscale.core.scale import TwoLevel

SLAB = 1 << 17  # elements; temporaries of the reference take up to 150 bytes for each
_THREADS = 8  # at most: each has a slab and its temporaries

T = TypeVar("T")
R = TypeVar("R")

Read = Callable[[int, int], Tensor]  # rows [start, stop) of a stored tensor


class Map(Protocol):
    """The builtin `map`, or one that works on several items at the same time."""

    def __call__(self, work: Callable[[T], R], items: Iterable[T], /) -> Iterator[R]:
        """`work` of each item, in their order."""


class Pool:
    """Threads for slabs; a context manager. torch's own threads rest meanwhile."""

    def __enter__(self) -> Self:
        self._before = torch.get_num_threads()
        self._count = min(self._before, _THREADS)
        self._threads = ThreadPoolExecutor(
            self._count, initializer=torch.set_num_threads, initargs=(1,)
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._threads.shutdown(cancel_futures=True)
        torch.set_num_threads(self._before)

    def map(self, work: Callable[[T], R], items: Iterable[T], /) -> Iterator[R]:
        """`work` of each item in their order; no more than a few are held at a time."""
        pending: deque[Future[R]] = deque()
        try:
            for item in items:
                pending.append(self._threads.submit(work, item))
                if len(pending) > self._count:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


def unit_rows(fmt: Format, rank: int) -> tuple[int, int]:
    """How many rows share one scale, and how many share everything; WHOLE for all of them."""
    rows = fmt.block.sizes_for(rank)[0] if rank else WHOLE
    if not isinstance(fmt.scale, TwoLevel):
        return rows, rows
    return rows, rows * (fmt.scale.inner.block.sizes_for(rank)[0] if rank else WHOLE)


def slab_rows(shape: tuple[int, ...], unit: int, elements: int) -> int:
    """Rows of a slab of about `elements`, a multiple of `unit`."""
    rows = max(elements // max(prod(shape[1:]), 1), 1)
    return max(rows // unit, 1) * unit


def slabs(count: int, rows: int) -> list[tuple[int, int]]:
    """(start, stop) of each slab of `rows`; one that is empty where there is no row."""
    starts = range(0, count, max(rows, 1)) if count else (0,)
    return [(start, min(start + rows, count)) for start in starts]


def flat_shape(shape: tuple[int, ...], fmt: Format) -> tuple[int, ...]:
    """`shape` with its leading dimensions as one, where no block can tell the difference.

    So a stack of matrices in groups along the last dimension goes row by row, not matrix by matrix.
    """
    blocks = [fmt.block]
    if isinstance(fmt.scale, TwoLevel):
        blocks.append(fmt.scale.inner.block)
    if len(shape) < 3 or not all(_ignores_leading(block, len(shape)) for block in blocks):
        return shape
    return (prod(shape[:-1]), shape[-1])


def _ignores_leading(block: Block, rank: int) -> bool:
    *leading, last = block.sizes_for(rank)
    from_the_end = all(dim < 0 for dim, _ in block.sizes)  # so it means the same at rank 2
    return from_the_end and (set(leading) == {1} or {*leading, last} == {WHOLE})
