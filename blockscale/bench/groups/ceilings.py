# SPDX-License-Identifier: BSD-3-Clause
"""What the machine does at best: a copy, and torch's own matrix product."""

import ctypes
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache, lru_cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.bench.requests import Call, Case, Contestant, Layer, normal
from blockscale.bench.settings import Settings
from blockscale.bench.timing import Timing

GROUP = "ceilings"


def cases(settings: Settings) -> Iterator[Case]:
    """Copies of several sizes, and products of the first linear layer."""
    device = settings.device
    for nbytes in settings.sizes.copies:
        about = {"op": "copy", "bytes": nbytes}
        contestants = partial(copies, nbytes, device)
        yield Case(f"ceilings/copy/{nbytes}", GROUP, about, contestants, _gigabytes, cold=True)
    (k, n), rows = next(iter(settings.sizes.linear.items()))
    for m in rows:
        about = {"op": "matmul", "m": m, "k": k, "n": n, "operations": 2 * m * k * n}
        figures = partial(_operations, 2 * m * k * n)
        products = partial(_products, k, n, m, settings)
        yield Case(f"ceilings/matmul/{k}x{n}/m={m}", GROUP, about, products, figures, cold=True)


def _products(k: int, n: int, m: int, settings: Settings) -> Iterator[Contestant]:
    device = settings.device
    weight = Layer(k, n, device).weight
    for dtype in dict.fromkeys((settings.dtype, torch.bfloat16)):
        call = partial(F.linear, normal((m, k), dtype, device), weight.to(dtype))
        yield Contestant(f"torch {str(dtype).removeprefix('torch.')}", "ceiling", call)


def _gigabytes(
    contestant: Contestant, timing: Timing, times: Mapping[str, Timing]
) -> dict[str, float]:
    del times
    return {"gigabytes_per_second": (contestant.bytes or 0) / timing.median / 1e9}


def _operations(
    count: int, contestant: Contestant, timing: Timing, times: Mapping[str, Timing]
) -> dict[str, float]:
    del contestant, times
    return {"gigaflops": count / timing.median / 1e9}


# The ceiling of everything that moves bytes: a copy between two tensors that exist already.


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
