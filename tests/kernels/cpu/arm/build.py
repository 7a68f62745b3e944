# SPDX-License-Identifier: BSD-3-Clause
"""The kernels compiled for AArch64 by Debian's cross compiler, without Python, and run by qemu."""

import shutil
import subprocess
from pathlib import Path

SRC = Path(__file__).parents[4] / "blockscale/kernels/cpu/src"
DRIVER = Path(__file__).with_name("driver.cpp")
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
# As CMakeLists.txt has them (tests/kernels/cpu/arm/test_arm.py compares).
ISAS = {
    "neon": [],
    "dotprod": ["-march=armv8.2-a+dotprod"],
    "i8mm": ["-march=armv8.2-a+dotprod+i8mm"],
}
FLAGS = ["-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-Werror=switch"]
HEADER = """
#define BLOCKSCALE_EACH_ISA(X) {}
#define BLOCKSCALE_COMPILER "cross"
#define BLOCKSCALE_FLAGS ""
#define BLOCKSCALE_SOURCES ""
"""
# Where an instruction set only adds to products, as CMakeLists.txt writes it.
LIKE = """
#include "primitives.h"
namespace blockscale::{like} {{ const Primitives& primitives(); }}
namespace blockscale::{isa} {{ const Primitives& primitives() {{ return {like}::primitives(); }} }}
"""


def missing() -> str | None:
    """Why nothing can be compiled or run here; None if it can."""
    lacking = [name for name in (COMPILER, EMULATOR) if shutil.which(name) is None]
    if not lacking:
        return None
    packages = "g++-aarch64-linux-gnu qemu-user"
    return f"no {' and no '.join(lacking)} (Debian: apt-get install {packages})"


def run(*command: str | Path) -> str:
    """What a command prints; AssertionError with all of it if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def built(folder: Path, src: Path = SRC, isas: tuple[str, ...] = tuple(ISAS)) -> Path:
    """The driver, linked to the kernels of these instruction sets."""
    (folder / "build.h").write_text(HEADER.format(" ".join(f"X({isa})" for isa in isas)))
    common = ["-std=c++20", "-c", f"-I{folder}", f"-I{src}"]
    every = [
        path for path in sorted(src.rglob("*.cpp")) if "isa" not in path.relative_to(src).parts
    ]
    plain = [path for path in every if not is_binding(path)]
    units = [(path, "plain", ["-O1"]) for path in (*plain, DRIVER)]
    for isa in isas:
        flags = [*FLAGS, *ISAS[isa], f"-DBLOCKSCALE_ISA={isa}"]
        own = sorted(src.glob("isa/*/*.cpp"))
        if isa != isas[0]:
            own = [path for path in own if path.parent.name != "primitives"]
            own.append(folder / f"primitives_{isa}.cpp")
            own[-1].write_text(LIKE.format(like=isas[0], isa=isa))
        units += [(path, isa, flags) for path in own]
    objects = []
    for path, name, flags in units:
        objects.append(folder / f"{name}_{path.parent.name}_{path.stem}.o")
        run(COMPILER, *common, *flags, path, "-o", objects[-1])
    run(COMPILER, "-static", "-pthread", *objects, "-o", folder / "driver")
    return folder / "driver"


def is_binding(path: Path) -> bool:
    """Whether a file is part of the Python module only."""
    return "<nanobind/" in path.read_text()


def emulate(cpu: str, *command: str | Path) -> str:
    """What a program prints on such a processor."""
    return run(EMULATOR, "-cpu", cpu, *command)
