# SPDX-License-Identifier: BSD-3-Clause
"""Products of matrices on the processor's matrix unit have the bits of those by vectors.

Where the processor has none, a slow test compiles the library with the unit's instructions
emulated, and runs this file and those of linear layers again with that.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import cmake
import ninja
import pytest
import torch
from torch import Tensor

from blockscale.kernels.cpu import _native
from tests.kernels.cpu.equal import settings
from tests.support.cpu_linear import excess, run, stored
from tests.support.same import same

ROOT = Path(__file__).parents[3]
REASON = _native.lacking().get("amx", "this library was not compiled for it")
WEIGHTS = (
    *("int8:channel0:fp32", "int4:group32:fp32", "int2:group16:fp32", "ternary:token:fp32"),
    *("int8:group32:e8m0/floor", "int6:group48:fp32", "uint4:group32:fp16:asym"),
    *("uint8:group64:fp32:asym", "int3:token:fp32", "int8:block*x128:fp32"),
)
INPUTS = (
    *("int8:token:fp32", "int8:tensor:fp32", "int8:group32:e8m0/floor", "int4:group16:fp32"),
    *("uint8:token:fp32:asym", "uint8:tensor:fp32:asym", "uint8:group64:fp32:asym"),
)
NO_INTEGERS = {  # neither block holds the other whole: floats are multiplied
    ("int6:group48:fp32", "int8:group32:e8m0/floor"),
    ("int6:group48:fp32", "uint8:group64:fp32:asym"),
}
SIZES = (  # (m, k, n): last tiles of few rows and of many, blocks that end inside a product
    *((9, 64, 33), (16, 200, 31), (17, 96, 64), (32, 1040, 40), (33, 333, 100)),
    *((70, 520, 65), (129, 16, 32), (200, 77, 1)),
)
ROWS_OF_BLOCKS, ROWS_OF_FLOATS = 192, 161  # the fewest that matrices take in every format
TESTS = ("amx", "linear", "fused_linear", "conv", "fused_conv")

needs_unit = pytest.mark.skipif("amx" not in _native.isas(), reason=f"no amx here: {REASON}")


def by_both(x: Tensor, weight: tuple, fmt: str, given: str, threads: int = 1) -> list[Tensor]:
    """The same layer by vectors and by matrices."""
    found = []
    for isa in ("avx512vnni", "amx"):
        with settings(isa, threads):
            found.append(run(x, weight, fmt, given, bias=torch.arange(len(weight[0])) / 7))
    return found


@needs_unit
@pytest.mark.parametrize("fmt", WEIGHTS)
def test_the_same_bits(fmt: str) -> None:
    for i, (m, k, n) in enumerate(SIZES):
        weight = stored(torch.randn(n, k), fmt)
        for given in (INPUTS[i % len(INPUTS)], INPUTS[(i + len(fmt)) % len(INPUTS)], INPUTS[0]):
            if (fmt, given) not in NO_INTEGERS:
                rows = m + ROWS_OF_BLOCKS * ("group" in given)
                x = torch.randn(rows, k) + 0.3
                assert same(*by_both(x, weight, fmt, given)), (given, rows, k, n)


@needs_unit
@pytest.mark.parametrize("codes", [16, 512])
def test_panels_in_pieces(codes: int) -> None:
    """As of weights with more rows than stay in a cache: sums go on from piece to piece."""
    before = _native.tuning()
    x = torch.randn(ROWS_OF_BLOCKS + 17, 1200)
    try:
        _native.set_tuning(before | {"matrix_codes": codes})
        for fmt, given in (
            ("int8:channel0:fp32", "int8:token:fp32"),
            ("uint8:channel0:fp32:asym", "uint8:token:fp32:asym"),
            ("int4:group32:fp32", "int8:token:fp32"),
            ("int8:group48:fp32", "int8:group48:fp32"),
            ("int8:group32:e8m0/floor", "int8:group32:e8m0/floor"),
        ):
            assert same(*by_both(x, stored(torch.randn(70, 1200), fmt), fmt, given)), (fmt, given)
    finally:
        _native.set_tuning(before)


@needs_unit
@pytest.mark.parametrize("fmt", ["int8:channel0:fp32", "int4:group32:fp32"])
def test_several_threads_and_batches(fmt: str) -> None:
    """Weights beyond L2, whose panels are shared out, and more threads than tiles of rows."""
    weight, x = stored(torch.randn(700, 1200), fmt), torch.randn(260, 1200)
    for given in ("int8:token:fp32", "uint8:token:fp32:asym"):
        for m, threads in ((260, 2), (40, 5)):
            assert same(*by_both(x[:m], weight, fmt, given, threads)), (given, m, threads)


@needs_unit
@pytest.mark.parametrize("fmt", ["int8:token:fp32", "uint8:token:fp32:asym"])
def test_the_largest_sums(fmt: str) -> None:
    """Every product the largest there is: sums of the unit do not saturate."""
    weight = stored(torch.full((32, 4096), -1.0), "int8:token:fp32:full")
    x = torch.full((32, 4096), -1.0)
    x[::2] *= -1
    assert same(*by_both(x, weight, "int8:token:fp32:full", fmt))


FLOATS = (
    *("int4:group128:bf16", "int8:channel0:fp32", "e4m3:group16:e4m3"),  # scaled late
    *(
        "e2m1:group32:e8m0/floor",
        "e4m3:group32:e8m0/floor",
        "int4:group32:fp32",
        "nf4:group64:fp32",
    ),
    *("e2m1:group16:e4m3", "uint4:group128:fp32:asym", "int8:channel0:fp16", "int16:group64:fp32"),
)


@pytest.mark.some(12)
@needs_unit
@pytest.mark.parametrize("fmt", FLOATS)
def test_floats(fmt: str) -> None:
    """One part of a number to three, in x and in the weight; pieces of k end within a product."""
    sizes = ((15, 64, 33), (32, 1100, 200), (359, 40, 31), (8, 513, 64))
    for i, (more, k, n) in enumerate(sizes):
        m = ROWS_OF_FLOATS + more
        weight = stored(torch.randn(n, k), fmt)
        for dtype in (torch.float32, torch.bfloat16, torch.float16)[i % 2 :]:
            x, bias = torch.randn(m, k).to(dtype), torch.randn(n).to(dtype)
            with settings("amx", 1 + i % 2):
                y = run(x, weight, fmt, bias=bias)
                assert excess(y, x, weight, fmt, bias=bias) <= 1, (m, k, n, dtype)


@pytest.mark.some(3)
@needs_unit
@pytest.mark.parametrize("value", [0.0, 1e-22, 1e-38, 1e-30, 1e-44, 3e38, torch.inf, torch.nan])
def test_floats_that_the_unit_would_change(value: float) -> None:
    """Subnormals, and what overflows or is no number: the vectors compute these layers."""
    for fmt in ("e2m1:group32:e8m0/floor", "int4:group32:fp32"):
        for scale in (1.0, 1e-12):
            weight, x = stored(torch.randn(40, 96) * scale, fmt), torch.randn(180, 96)
            x[3], x[5, 7] = value, -value
            found = []
            for isa in ("avx512vnni", "amx"):
                with settings(isa, 1):
                    found.append(run(x, weight, fmt))
            late = fmt.startswith("int4")  # the unit multiplies codes, of whatever scale
            if value == 0.0 or (value == 1e-22 and (late or scale == 1.0)):
                assert excess(found[1], x, weight, fmt) <= 1
            else:
                assert same(*found), (fmt, scale)


def emulated(folder: Path) -> Path:
    """A library whose matrix unit is plain C++."""
    program = Path(cmake.CMAKE_BIN_DIR, "cmake")
    options = (
        f"-DCMAKE_MAKE_PROGRAM={Path(ninja.BIN_DIR, 'ninja')}",
        f"-DPython_EXECUTABLE={sys.executable}",
        *("-DBLOCKSCALE_ISAS=avx512vnni;amx", "-DBLOCKSCALE_AMX_EMULATED=ON"),
    )
    steps: list[list[str | Path]] = [
        [program, "-S", ROOT, "-B", folder, "-G", "Ninja", *options],
        [program, "--build", folder],
    ]
    for command in steps:
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    (library,) = folder.glob("_native*")
    return library


@pytest.mark.slow
def test_emulated(tmp_path: Path) -> None:
    if "avx512vnni" not in _native.isas():
        pytest.skip("the emulated unit stands beside AVX-512 VNNI, which is not here")
    if not os.environ.get("CXX") and shutil.which("c++") is None:
        pytest.skip("this machine has no C++ compiler")
    environment = os.environ | {"BLOCKSCALE_NATIVE": str(emulated(tmp_path))}
    environment.pop("BLOCKSCALE_CPU_ISA", None)
    tests = [str(Path(__file__).with_name(f"test_{name}.py")) for name in TESTS]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", "--every-case"]
    done = subprocess.run(
        [*command, *tests], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "no amx here" not in done.stdout
