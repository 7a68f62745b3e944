# SPDX-License-Identifier: BSD-3-Clause
"""The kernel for dozens to thousands of rows (the way "fused"), which only a Hopper runs."""

import pytest
import torch

pytest.importorskip("triton")

import blockscale as bs
from blockscale.core.operand import Operand
from blockscale.core.parse import CATALOG, parse
from blockscale.kernels.cuda.linear import multiply
from blockscale.kernels.cuda.matmul import hopper
from blockscale.kernels.cuda.matmul.choice import WayChoice, rule
from blockscale.kernels.cuda.matmul.fused import FusedSettings, takes
from blockscale.kernels.cuda.matmul.operands import ProductCall, Values, Weight
from blockscale.kernels.cuda.matmul.reading import reading
from blockscale.ops import primitives as P
from blockscale.ops.linear import linear
from tests.support.gpu_linear import excess, stored

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or hopper.unusable(0) is not None,
        reason="needs a Hopper and a Triton that the kernel was tested with",
    ),
]
TILES = (  # rows, outputs, programs that share a processor
    *((64, 64, 0), (64, 128, 0), (128, 64, 0), (128, 128, 0), (256, 64, 0), (256, 128, 0)),
    *((8, 64, 3), (16, 128, 2), (32, 64, 4), (128, 64, 2), (192, 128, 0)),
)
EXTRA = ("e2m1:tile32x32:e8m0", "int8:tile128x128:fp32", "int8:group128:fp32", "int4:group256:fp32",
         "int4:channel0:fp32:asym", "int8:group32:pow2/nearest", "int4:group32:fp32",
         "int4:group64:fp16", "uint4:group32:fp32:asym", "uint4:group64:bf16:asym",
         "int8:group32:fp32", "e4m3:group32:fp32", "e2m1:group32:fp32",
         "int2:group128:fp16", "uint2:group64:fp32:asym")  # fmt: skip


def formats(k):
    """Every format that the kernel reads at this k."""
    found = []
    for name in (*CATALOG.values(), *EXTRA):
        fmt = str(parse(name))
        r = reading(fmt, k)
        if r is not None and takes(r) and fmt not in found:
            found.append(fmt)
    return found


def run(x, weight, fmt, settings, bias=None):
    return multiply(Values(x), Weight(*weight), fmt, bias, x.dtype, WayChoice("fused", settings))


@pytest.mark.parametrize("fmt", formats(1152))
@pytest.mark.parametrize(("m", "k"), [(33, 1152), (150, 256), (300, 1184)])
def test_every_format_and_tile(fmt, m, k):
    r, n = reading(fmt, k), 200
    if r is None or not takes(r):
        pytest.skip(f"{fmt} has no whole blocks in {k}")
    weight = stored(n, k, fmt)
    if not hopper.can_run(weight[0]):
        pytest.skip(f"rows of {k} codes of {fmt} begin anywhere")
    for i, (rows, outputs, shared) in enumerate(TILES):
        dtype = (torch.bfloat16, torch.float32, torch.float16)[i % 3]
        chunks, tail = ((1, 1), (3, 1), (1, 3), (1, 1), (2, 1), (1, 2))[(i + m) % 6]
        settings = FusedSettings(rows, outputs, shared, chunks, tail if rows > 8 else 1)
        if takes(r, settings):
            x = torch.randn(m, k, device="cuda").to(dtype)
            bias = torch.randn(n, device="cuda").to(dtype)
            y = run(x, weight, fmt, settings, bias)
            assert excess(y, x, weight, fmt, "", bias) <= 1, (settings, dtype)


@pytest.mark.parametrize("fmt", formats(1152))
def test_one_block_that_is_not_finite(fmt):
    """A NaN in x reaches its row alone, one in the weight its output alone."""
    m, n, k = 70, 130, 1152
    weight = stored(n, k, fmt)
    x = torch.randn(m, k, device="cuda").bfloat16()
    x[3, 700] = float("nan")
    y = run(x, weight, fmt, FusedSettings(64, 128))
    bad = torch.zeros(m, n, dtype=torch.bool, device="cuda")
    bad[3] = True
    assert torch.equal(y.isnan(), bad)
    w = torch.randn(n, k, device="cuda")
    w[77, 5] = float("nan")
    codes, *rest = P.choose_quantize.reference(w, fmt, None)
    scale, outer, zero_point = P.from_list(rest, parse(fmt))[:3]
    dense = P.dequantize.reference(Operand(codes, scale, zero_point, outer, fmt, k), torch.float32)
    y = run(torch.ones_like(x), (codes, scale, zero_point, outer), fmt, FusedSettings(64, 128))
    assert torch.equal(y.isnan(), dense.isnan().any(1)[None].expand(m, n))


@pytest.mark.parametrize("name", ["int8:channel0:fp32", "mxfp4", "int4"])
def test_long_sums_of_float32_keep_their_bits(name):
    """All products positive: where tensor cores truncate, the errors add up."""
    fmt, k, n = str(parse(name)), 16384, 128
    weight = stored(n, k, fmt)
    dense = P.dequantize.reference(Operand(*weight, fmt, k), torch.float32)
    x = (torch.rand(64, k, device="cuda") * dense[3].sign()).bfloat16().float()
    y = run(x, weight, fmt, FusedSettings(128, 128))
    assert excess(y, x, weight, fmt, "", torch.zeros(n, device="cuda")) <= 1


def test_what_it_does_not_take_goes_another_way():
    """Rows of codes that begin anywhere, and fewer bits, are for other kernels."""
    k, n = 1160, 64  # 580 bytes of 4-bit codes: not a multiple of 16
    fmt = str(parse("e2m1:channel0:fp32"))
    weight = stored(n, k, fmt)
    assert not hopper.can_run(weight[0])
    x = torch.randn(100, k, device="cuda").bfloat16()
    y = multiply(Values(x), Weight(*weight), fmt, None, x.dtype)
    assert excess(y, x, weight, fmt, "", torch.zeros(n, device="cuda")) <= 1
    few = reading(str(parse("int2:group64:e8m0/floor")), 1024)
    assert few is not None
    assert not takes(few)
    assert rule(ProductCall("weight", "", 100, 512, 1024, True), few).way != "fused"
    whole = reading(str(parse("mxfp4")), 1024)
    assert rule(ProductCall("weight", "", 100, 512, 1024, True), whole).way == "fused"
    assert rule(ProductCall("weight", "", 100, 512, 1024, False), whole).way != "fused"


def test_capture():
    fmt, k, n = str(parse("mxfp4")), 1024, 256
    weight = stored(n, k, fmt)
    x = torch.randn(100, k, device="cuda").bfloat16()
    settings = FusedSettings(128, 64, 0, 2)
    run(x, weight, fmt, settings)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = run(x, weight, fmt, settings)
    x.copy_(torch.randn_like(x))
    graph.replay()
    assert torch.equal(y, run(x, weight, fmt, settings))


@pytest.mark.parametrize("rows", [16, 64])
@pytest.mark.parametrize("fmt", ["int8_channel", "int4:group128:fp32", "mxfp6", "nvfp4"])
def test_a_large_weight_gives_the_same_sums_at_each_call(fmt: str, rows: int) -> None:
    """As it is chosen: more programs than the GPU holds at a time. Where some begin while others
    end, barriers that nobody waits for came to life in the memory that others had been given."""
    draw = torch.Generator("cuda").manual_seed(0)
    weight = torch.randn(28672, 8192, device="cuda", generator=draw)
    x = torch.randn(rows, 8192, device="cuda", generator=draw).bfloat16()
    q = bs.quantize(weight, fmt)
    expected = x.float() @ q.dequantize(torch.float32).T
    each = [linear(x, q.operand) for _ in range(5)]
    assert all(torch.equal(each[0], y) for y in each)
    assert (each[0].float() - expected).norm() < 0.005 * expected.norm()
