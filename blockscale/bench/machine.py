# SPDX-License-Identifier: BSD-3-Clause
"""What a figure was measured on: processor, versions, commit."""

import pathlib
import platform
import subprocess
from dataclasses import asdict
from functools import cache
from importlib import metadata
from typing import Any

import torch

import blockscale as bs

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
    told = asdict(bs.hardware())
    for each in ("openmp", "backends", "adapters", "kernels", "rates"):
        del told[each]
    return told | {"cache_bytes": last_cache(device)}


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
        done = subprocess.run(
            ["git", "-C", str(CHECKOUT), *arguments], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def commit() -> str:
    """The checkout's commit, with `+` if files other than results differ from it."""
    if git("ls-files", "--error-unmatch", "blockscale/__init__.py") is None:
        return "unknown"  # installed, perhaps inside somebody else's checkout
    changed = git("status", "--porcelain", "--", ":/", ":(exclude)benchmarks/results")
    return (git("rev-parse", "HEAD") or "unknown") + ("+" if changed else "")
