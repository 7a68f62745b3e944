# SPDX-License-Identifier: BSD-3-Clause
"""Kernels as Triton's compiler reads them for a GPU, which needs none.

The interpreter runs them as Python: a name that is a string there, a type that changes in a branch
pass it, and stop every call on a GPU.
"""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

PROGRAM = """
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from blockscale.core.parse import parse
from blockscale.kernels.cuda.primitives.encoding import encode_tile, errors_tile
from blockscale.kernels.cuda.primitives.plan import plan

target = GPUTarget("cuda", 90, 32)
backend = make_backend(target)


def compiled(kernel, fmt, result, number, size):
    planned = plan(str(parse(fmt)), (1024, 1024), result, result != "codes", 0, size)
    spec, tile, extents = planned.spec, planned.tiling.tile, planned.tiling.extents
    kinds = {"x_at": "*" + number, "every": "i32", "scale": "*u8"}
    kinds["out"] = "*u8" if result == "codes" else "*" + number
    kinds["errors"] = "*fp64"
    if spec.scale == "two_level":
        kinds |= {"outer": "*fp32"} | ({"extra": "*i32"} if result == "codes" else {})
    kinds = {name: kinds.get(name, "constexpr") for name in kernel.arg_names}
    kinds["extents"] = type(extents)(*("constexpr" if each == 1 else "i32" for each in extents))
    values = {"spec": spec, "tile": tile}
    fixed = {
        (i,): values.get(name) for i, name in enumerate(kernel.arg_names)
        if kinds[name] == "constexpr"
    }
    at = kernel.arg_names.index("extents")
    fixed |= {(at, j): 1 for j, each in enumerate(extents) if each == 1}
    options = backend.parse_options(dict(planned.options))
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    source = ASTSource(kernel, kinds, fixed, {})
    code = backend.get_codegen_implementation(options)
    return str(source.make_ir(target, options, code, backend.get_module_map(), context))


for case in (
    (encode_tile, "nvfp4", "codes", "bf16", 2),
    (encode_tile, "mxfp4", "values", "fp32", 4),
    (encode_tile, "nvfp4_e5m3", "codes", "bf16", 2),
    (encode_tile, "nvfp4_e5m3", "values", "fp32", 4),
    (errors_tile, "nvfp4", "errors", "fp32", 4),
):
    print(case[1], case[2], compiled(*case).count("tt.store"))
"""


@pytest.mark.slow
def test_kernels_that_encode_compile_for_a_gpu() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-2000:]
    rows = [line.split() for line in run.stdout.splitlines()]
    assert [row[:2] for row in rows] == [
        ["nvfp4", "codes"], ["mxfp4", "values"], ["nvfp4_e5m3", "codes"], ["nvfp4_e5m3", "values"],
        ["nvfp4", "errors"],
    ]  # fmt: skip
    assert all(int(stores) > 0 for *_, stores in rows)
