# SPDX-License-Identifier: BSD-3-Clause
"""Ranks as threads of one process, and weights of which each has a part."""

from collections.abc import Callable
from threading import Barrier, Thread
from typing import Any

import torch
from torch import Tensor

from blockscale.core import shared_scales
from blockscale.core.cuts import share
from blockscale.core.operand import quantizer
from blockscale.core.parse import parse
from blockscale.ops import primitives
from blockscale.ops.tensor import QTensor

_MERGE = {"max": torch.amax, "sum": torch.sum}


def ranks(work: Callable[[int, Callable[[Tensor, str], None]], Any], count: int) -> list[Any]:
    """What work(rank, merge) gives on each rank; an error of one is raised."""
    barrier, there = Barrier(count), [torch.empty(0)] * count
    results: list[Any] = [None] * count
    errors: list[BaseException] = []

    def merge_on(rank: int) -> Callable[[Tensor, str], None]:
        def merge(x: Tensor, how: str) -> None:
            there[rank] = x
            barrier.wait()
            whole = _MERGE[how](torch.stack(there), 0)
            barrier.wait()
            x.copy_(whole)

        return merge

    def begin(rank: int) -> None:
        try:
            results[rank] = work(rank, merge_on(rank))
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [Thread(target=begin, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def weight(*shape: int) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    x = x * torch.logspace(-2, 2, shape[-2])[:, None]
    x[..., 1, 2], x[..., 0, shape[-1] // 2] = torch.inf, torch.nan
    return x


def same(a: QTensor, b: QTensor) -> bool:
    pairs = zip((a.packed, *a.qparams), (b.packed, *b.qparams), strict=True)
    return a.format == b.format and all(
        x is y is None or (x.dtype == y.dtype and torch.equal(_bits(x), _bits(y))) for x, y in pairs
    )


def _bits(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.uint8) if x.ndim else x.reshape(1).view(torch.uint8)


def quantized(x: Tensor, name: str, dim: int, places: tuple[int, ...]) -> list[QTensor]:
    """Each part of x, quantized by a rank that has only that."""

    def work(rank: int, merge) -> QTensor:
        own = share(x.shape, dim, places, rank)
        some = x.narrow(dim, own.start, own.stop - own.start)
        qparams, fmt = shared_scales.choose(some, parse(name), own, merge)
        packed = primitives.quantize(some, quantizer(qparams, fmt))
        return QTensor(packed, qparams, fmt, some.shape[-1])

    return ranks(work, len(places) - 1)
