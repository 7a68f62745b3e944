# SPDX-License-Identifier: BSD-3-Clause
"""What the processor has: instructions for small numbers, and caches. Probed only when asked."""

import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

# Those that kernels for small numbers are made of, as Linux names them, and torch where it differs.
INSTRUCTIONS: dict[str, tuple[str, ...]] = {
    "avx2": ("avx2",),
    "fma": ("fma", "fma3"),
    "f16c": ("f16c",),
    "avx512f": ("avx512f", "avx512_f"),
    "avx512bw": ("avx512bw", "avx512_bw"),
    "avx512_vnni": ("avx512_vnni",),
    "avx_vnni": ("avx_vnni",),
    "avx512_bf16": ("avx512_bf16",),
    "avx512_fp16": ("avx512_fp16",),
    "amx_tile": ("amx_tile",),
    "amx_int8": ("amx_int8",),
    "amx_bf16": ("amx_bf16",),
    "amx_fp16": ("amx_fp16",),
    "neon": ("asimd",),
    "dotprod": ("asimddp",),
    "i8mm": ("i8mm",),
    "bf16": ("bf16",),
    "fp16": ("asimdhp",),
    "sve": ("sve",),
    "sve2": ("sve2",),
}
_LINE = re.compile(r"^(?:flags|Features)\s*:(.*)$", re.MULTILINE)
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Cache:
    """A cache of the first core.

    level: 1 is the nearest; kind: "Data", "Instruction" or "Unified"; size, line: in bytes
    shared: how many cores have it together
    """

    level: int
    kind: str
    size: int
    line: int
    shared: int


def instructions(info: Path = Path("/proc/cpuinfo")) -> tuple[str, ...]:
    """Those of INSTRUCTIONS that the processor has; () where nothing tells.

    Linux tells, elsewhere torch from release 2.13 on.
    """
    result = _LINE.search(info.read_text()) if info.exists() else None
    if result is not None:
        present = set(result[1].split())
    else:
        capabilities: Any = getattr(torch.cpu, "get_capabilities", dict)()
        present = {name for name, there in capabilities.items() if there is True}
    return tuple(name for name, names in INSTRUCTIONS.items() if present.intersection(names))


def family(info: Path = Path("/proc/cpuinfo")) -> str:
    """Vendor and family of the processor, as Linux tells them; elsewhere its architecture.

    Of Arm: who made the core, and which one it is.
    """
    text = info.read_text() if info.exists() else ""
    for pair in (("vendor_id", "cpu family"), ("CPU implementer", "CPU part")):
        results = [re.search(rf"^{name}\s*:\s*(\S+)$", text, re.MULTILINE) for name in pair]
        if all(results):
            return " ".join(each[1] for each in results if each is not None)
    return platform.machine().lower()


def caches(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> tuple[Cache, ...]:
    """The caches of the first core, the nearest first; () where the system does not list them."""
    results = [_cache(each) for each in folder.glob("index*") if (each / "size").exists()]
    return tuple(sorted(results, key=lambda each: (each.level, each.kind)))


def _cache(folder: Path) -> Cache:
    def text(name: str) -> str:
        file = folder / name
        return file.read_text().strip() if file.exists() else ""

    size = text("size")
    return Cache(
        level=int(text("level") or 0),
        kind=text("type"),
        size=int(size.rstrip("KMG") or 0) * _UNITS.get(size[-1:], 1),
        line=int(text("coherency_line_size") or 0),
        shared=_count(text("shared_cpu_list")),
    )


def _count(cpu_list: str) -> int:
    """How many numbers a list such as `0-3,8` has."""
    total = 0
    for part in filter(None, cpu_list.split(",")):
        first, _, last = part.partition("-")
        total += int(last or first) - int(first) + 1
    return total


def tensor_formats(major: int, minor: int) -> tuple[str, ...]:
    """What an NVIDIA GPU of this compute capability multiplies in hardware.

    Source: CUDA C++ Programming Guide, "Compute Capabilities", and PTX ISA, the targets of `dp4a`,
    `mma`, `wgmma` and `tcgen05.mma`. "int8 dp4a" is of the ordinary cores, all others of tensor
    cores.
    """
    since = {
        "int8 dp4a": (6, 1),
        "fp16": (7, 0),
        "int8": (7, 2),
        "bf16": (8, 0),
        "tf32": (8, 0),
        "fp8": (8, 9),
        "fp6 and fp4 in blocks of e8m0": (10, 0),
    }
    return tuple(name for name, least in since.items() if (major, minor) >= least)
