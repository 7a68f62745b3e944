# SPDX-License-Identifier: BSD-3-Clause
"""What the products for Hopper keep in shared memory, read from what Gluon makes of them."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

PROGRAM = """
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language import NVMMASharedLayout
from blockscale.core.parse import parse
from blockscale.kernels.cuda.matmul.fused import FusedSettings, work
from blockscale.kernels.cuda.matmul.hopper.fused import multiply
from blockscale.kernels.cuda.matmul.reading import reading

target = GPUTarget("cuda", 90, 32)
backend = make_backend(target)
for fmt, outputs, programs, block, grouped in (
    ("int8:channel0:fp32", 64, 4, 0, False), ("int4:group128:fp32", 128, 0, 2, False),
    ("int8:group128:fp32", 128, 0, 2, False), ("mxfp4", 128, 0, 0, True),
    ("int4:group128:fp32", 128, 0, 2, True), ("uint4:group32:fp32:asym", 128, 0, 1, True),
):
    settings = FusedSettings(64 if grouped else 16, outputs, programs)
    t = work(reading(str(parse(fmt)), 8192), settings, block, 0, grouped)
    names = multiply.arg_names
    kinds = dict.fromkeys(names, "i32")
    kinds |= dict.fromkeys(("zero", "factors", "x_row", "bias", "parts", "T", "table"), "constexpr")
    x, w = NVMMASharedLayout(128, 16, 2), NVMMASharedLayout(64, 32, 2)
    kinds["x_at"] = f"tensordesc<bf16[{t.box}, {t.codes}],{x!r}>"
    kinds["w_at"] = f"tensordesc<i32[{outputs}, 16],{w!r}>"
    kinds |= {"scale": "*u8" if t.reading.fold else "*fp32", "out": "*bf16"}
    if grouped:
        kinds |= {"table": "*i32", "bias": "*bf16"}
    if t.reading.zero:
        kinds["zero"] = "*i32"
    fixed = {(i,): t if n == "T" else None for i, n in enumerate(names) if kinds[n] == "constexpr"}
    options = backend.parse_options({"num_warps": t.warps})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    made = GluonASTSource(multiply, kinds, fixed, {}).make_ir(
        target, options, backend.get_codegen_implementation(options),
        backend.get_module_map(), context,
    )
    print(int(t.alternates), t.stages, str(made).count("ttng.init_barrier"))
"""


@pytest.mark.slow
def test_no_barrier_is_made_that_nobody_waits_for() -> None:
    """Its memory would be given to others, where the GPU may write the barrier once more: sums of
    large weights were wrong while programs shared a processor. A full and an empty one a stage; two
    more by which groups of warps take turns."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    rows = [tuple(map(int, line.split())) for line in run.stdout.splitlines()]
    assert [alternates for alternates, *_ in rows] == [0, 1, 0, 0, 1, 0]  # by slots none
    for alternates, stages, barriers in rows:
        assert barriers == 2 * stages + 2 * alternates
