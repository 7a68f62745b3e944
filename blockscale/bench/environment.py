# SPDX-License-Identifier: BSD-3-Clause
"""The process that measures: memory that stays, and every core."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

import blockscale as bs

# glibc gives large blocks back to the system and asks for them again; the page faults of fresh
# memory then hide all else on small virtual machines.
ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": "8000000000", "MALLOC_MMAP_THRESHOLD_": "8000000000"}
GUARD = "BLOCKSCALE_BENCH_STARTED_AGAIN"
WHY = "started again with " + " ".join(f"{k}={v}" for k, v in ALLOCATOR.items())


def needed(environment: Mapping[str, str] = os.environ) -> dict[str, str] | None:
    """The environment to start again with, or None if this process is as it should be."""
    wanted = {**environment, **ALLOCATOR, GUARD: "1"}
    settled = all(environment.get(name) == value for name, value in ALLOCATOR.items())
    return None if settled or GUARD in environment or sys.platform != "linux" else wanted


def start_again() -> None:
    """Replace this process by itself with the allocator's settings, once."""
    environment = needed()
    if environment is not None:
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def allocator() -> dict[str, str]:
    """The settings that this process runs with."""
    return {name: os.environ.get(name, "the system's default") for name in ALLOCATOR}


@contextmanager
def every_core() -> Iterator[None]:
    """Torch uses all cores in here, and records no gradients."""
    before = torch.get_num_threads()
    torch.set_num_threads(bs.hardware().cores)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_num_threads(before)
