# SPDX-License-Identifier: BSD-3-Clause
"""What a figure was measured on: processor, versions, commit, and the process that measures."""

import os
import pathlib
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from importlib import metadata
from typing import Any

import torch

import blockscale as bs

# What a figure was measured on: processor, versions, commit.

PACKAGES = ("torch", "numpy", "torchao", "onnxruntime", "transformers", "triton")
CHECKOUT = pathlib.Path(__file__).parents[2]
_ASSUMED = 32 << 20  # bytes of last-level cache, where the system does not tell
_UNITS = {"K": 1 << 10, "M": 1 << 20}


@cache
def last_cache(device: str) -> int:
    """Bytes of the last-level cache; of a GPU, its L2. An assumption where nothing tells."""
    if device.startswith("cuda"):
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    folder = pathlib.Path("/sys/devices/system/cpu/cpu0/cache")
    sizes = [file.read_text().strip() for file in folder.glob("index*/size")]
    capacities = [int(size[:-1]) * _UNITS[size[-1]] for size in sizes if size[-1:] in _UNITS]
    return max(capacities, default=_ASSUMED)


def hardware(device: str = "cpu") -> dict[str, Any]:
    """The machine as plain data: `bs.hardware()` without what depends on the moment."""
    info = asdict(bs.hardware())
    for each in ("openmp", "backends", "adapters", "kernels", "rates"):
        del info[each]
    return info | {"cache_bytes": last_cache(device)}


def versions() -> dict[str, str]:
    """{package: its version}, Python's too."""
    of_package = {"python": platform.python_version(), "blockscale": bs.__version__}
    for name in PACKAGES:
        try:
            of_package[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            of_package[name] = "not installed"
    return of_package


def git(*arguments: str) -> str | None:
    """What git says in the checkout, or None where there is none."""
    try:
        process = subprocess.run(
            ["git", "-C", str(CHECKOUT), *arguments], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return process.stdout.strip() if process.returncode == 0 else None


def commit() -> str:
    """The checkout's commit, with `+` if files other than results differ from it."""
    if git("ls-files", "--error-unmatch", "blockscale/__init__.py") is None:
        return "unknown"  # installed, perhaps inside somebody else's checkout
    changes = git("status", "--porcelain", "--", ":/", ":(exclude)benchmarks/results")
    return (git("rev-parse", "HEAD") or "unknown") + ("+" if changes else "")


# The process that measures: memory that stays, and every core.

# glibc gives large blocks back to the system and asks for them again; the page faults of fresh
# memory then hide all else on small virtual machines.
ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": "8000000000", "MALLOC_MMAP_THRESHOLD_": "8000000000"}
GUARD = "BLOCKSCALE_BENCH_STARTED_AGAIN"
WHY = "started again with " + " ".join(f"{k}={v}" for k, v in ALLOCATOR.items())


def restart_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str] | None:
    """The environment to start again with, or None if this process is as it should be."""
    variables = {**environment, **ALLOCATOR, GUARD: "1"}
    is_set = all(environment.get(name) == value for name, value in ALLOCATOR.items())
    return None if is_set or GUARD in environment or sys.platform != "linux" else variables


def start_again() -> None:
    """Replace this process by itself with the allocator's settings, once."""
    environment = restart_environment()
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
