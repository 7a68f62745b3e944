# SPDX-License-Identifier: BSD-3-Clause
"""Memory that a call takes: the most that torch's allocators gave out at once while it ran."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def peak(call: Callable[[], Any], device: str) -> int:
    """Bytes above what was there before, the result included.

    Of tensors, whoever makes them. What native kernels take beside tensors (a tile for each thread)
    is not in it. On a CPU torch's profiler tells of every allocation; on CUDA the allocator does.
    """
    if device.partition(":")[0] == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated(device)) - before
    with _quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        kept = call()
    most = held = 0
    for _, nbytes in sorted(_allocations(found)):
        held += nbytes
        most = max(most, held)
    del kept
    return most


def _allocations(found: Any) -> Iterator[tuple[int, int]]:
    """(when, bytes; negative where they are given back)."""
    for event in found.profiler.kineto_results.events():
        if event.name() == "[memory]":
            yield event.start_ns(), event.nbytes()


@contextmanager
def _quiet() -> Iterator[None]:
    """Some builds of torch write two lines on standard error for each profile."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123 - a device
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
