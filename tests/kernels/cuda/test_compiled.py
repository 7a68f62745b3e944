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

START = """
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend

target = GPUTarget("cuda", 90, 32)
backend = make_backend(target)


def read(kernel, kinds, fixed, options):
    options = backend.parse_options(options)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    source = ASTSource(kernel, kinds, fixed, {})
    code = backend.get_codegen_implementation(options)
    return str(source.make_ir(target, options, code, backend.get_module_map(), context))
"""
PROGRAM = (
    START
    + """
from blockscale.core.parse import parse
from blockscale.kernels.cuda.primitives.encoding import encode_tile, errors_tile
from blockscale.kernels.cuda.primitives.plan import plan


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
    return read(kernel, kinds, fixed, dict(planned.options))


for case in (
    (encode_tile, "nvfp4", "codes", "bf16", 2),
    (encode_tile, "mxfp4", "values", "fp32", 4),
    (encode_tile, "nvfp4_e5m3", "codes", "bf16", 2),
    (encode_tile, "nvfp4_e5m3", "values", "fp32", 4),
    (errors_tile, "nvfp4", "errors", "fp32", 4),
):
    print(case[1], case[2], compiled(*case).count("tt.store"))
"""
)


ATTENTION = (
    START
    + """
import triton.language as tl
from blockscale.core.parse import parse
from blockscale.kernels.cuda.cached_attention import add_parts, attend
from blockscale.kernels.cuda.token_reading import reading

FLOATS = {"sums", "tops", "totals", "biases", "scaling", "key_outer", "value_outer"}
TENSORS = {"query", "keys", "values", "recent_keys", "recent_values", "out", "sinks"} | FLOATS


def kind(name, fmt):
    if name in ("key_scale", "value_scale"):
        return "*u8" if "e8m0" in fmt or "e4m3" in fmt.partition(":")[2] else "*fp32"
    if name in ("keys", "values"):
        return "*i32"
    if name in FLOATS:
        return "fp32" if name == "scaling" else "*fp32"
    return "*bf16" if name in TENSORS else "i32"


def compiled(kernel, fmt):
    fmt = str(parse(fmt))
    r = reading(fmt, 128)
    values = {
        "K": r, "V": r, "TYPES_K": (tl.bfloat16,) * r.planes, "TYPES_V": (tl.bfloat16,) * r.planes,
        "PARTS": 1, "POWERS": 2, "M": 16, "BT": 32, "BR": 32, "WK": 32, "WV": 32, "DEPTH": 128,
        "WIDTH": 128, "WARPS": 4, "EACH": 64, "key_zero": None, "value_zero": None,
    } | ({} if r.spec.scale == "two_level" else {"key_outer": None, "value_outer": None})
    names = kernel.arg_names
    kinds = {name: "constexpr" if name in values else kind(name, fmt) for name in names}
    fixed = {(i,): values[name] for i, name in enumerate(names) if name in values}
    return read(kernel, kinds, fixed, {"num_warps": 4})


for case in ((attend, "int8_token"), (attend, "mxfp4"), (attend, "nvfp4_token"),
             (add_parts, "mxfp4")):
    print(case[0].__name__, case[1], compiled(*case).count("tt.store"))
"""
)


def rows_of(program: str) -> list[list[str]]:
    """What a program prints, in words, whose Triton compiles for a GPU."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return [line.split() for line in run.stdout.splitlines()]


@pytest.mark.slow
def test_attention_compiles_for_a_gpu() -> None:
    rows = rows_of(ATTENTION)
    assert [row[:2] for row in rows] == [
        ["attend", "int8_token"], ["attend", "mxfp4"], ["attend", "nvfp4_token"],
        ["add_parts", "mxfp4"],
    ]  # fmt: skip
    assert all(int(stores) > 0 for *_, stores in rows)


@pytest.mark.slow
def test_kernels_that_encode_compile_for_a_gpu() -> None:
    rows = rows_of(PROGRAM)
    assert [row[:2] for row in rows] == [
        ["nvfp4", "codes"], ["mxfp4", "values"], ["nvfp4_e5m3", "codes"], ["nvfp4_e5m3", "values"],
        ["nvfp4", "errors"],
    ]  # fmt: skip
    assert all(int(stores) > 0 for *_, stores in rows)
