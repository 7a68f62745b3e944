# SPDX-License-Identifier: BSD-3-Clause
"""Linear layers on a GPU: every path and format within the op's tolerance. Needs CUDA:

`pytest -m gpu tests/gpu`. The same in Triton's interpreter: tests/kernels/cuda/test_linear.py.
"""

import pytest
import torch

import blockscale as bs
from blockscale.core.operand import Operand, Quantizer
from blockscale.core.parse import CATALOG, parse
from blockscale.ops import primitives as P
from blockscale.ops.linear import linear
from tests.support.gpu_linear import NOTHING, excess, stored

pytestmark = pytest.mark.gpu

INPUTS = (
    "",
    "int8:token:fp32",
    "mxfp8",
    "mxint8",
    "int8:tensor:fp32",
    "uint8:token:fp32:asym",
    "nvfp4",
)
BOXES = ("int8:block8x*:fp32", "int4:block*x32:fp32", "e2m1:block*x32:e8m0/floor")
FLOAT8_ULPS = 2**15  # of 2^-24: what sums of float8 products keep (docs/cuda_linear.md)


@pytest.mark.parametrize(
    "fmt", [*CATALOG.values(), "int4:group32:fp32", "int8:group128:fp32", *BOXES]
)
def test_every_format(fmt):
    n, k = 200, 576
    weight = stored(n, k, fmt)
    for i, input_fmt in enumerate(INPUTS):
        input_fmt = str(parse(input_fmt)) if input_fmt else ""
        for j, m in enumerate((1, 7, 33, 150)):
            dtype = (torch.float32, torch.bfloat16, torch.float16)[(i + j) % 3]
            if i and j > 1:
                continue
            x, bias = torch.randn(m, k, device="cuda").to(dtype), torch.randn(n, device="cuda")
            y = linear(
                x,
                Operand(*weight, fmt, x.shape[-1]),
                bias.to(dtype),
                Quantizer(*NOTHING, input_fmt, None),
            )
            assert excess(y, x, weight, fmt, input_fmt, bias.to(dtype)) <= 1, (fmt, input_fmt, m)


@pytest.mark.parametrize("m", [1, 40, 300])
def test_float8_codes(m):
    fmt, input_fmt, k, n = "e4m3:channel0:fp32", "e4m3:token:fp32", 1024, 160
    weight = stored(n, k, fmt)
    x, bias = torch.randn(m, k, device="cuda").bfloat16(), torch.zeros(n, device="cuda").bfloat16()
    y = linear(x, Operand(*weight, fmt, x.shape[-1]), bias, Quantizer(*NOTHING, input_fmt, None))
    assert excess(y, x, weight, fmt, input_fmt, bias, FLOAT8_ULPS) <= 1
    y = linear(
        x.float(),
        Operand(*weight, fmt, x.float().shape[-1]),
        bias.float(),
        Quantizer(*NOTHING, input_fmt, None),
    )
    assert excess(y, x.float(), weight, fmt, input_fmt, bias) <= 1  # a float32 shows every bit


@pytest.mark.parametrize("name", ["int8:channel0:fp32", "mxfp4", "nvfp4", "int4"])
def test_long_sums_keep_their_bits(name):
    """All products positive: where tensor cores truncate, the errors add up."""
    fmt, k, n = str(parse(name)), 16384, 128
    weight = stored(n, k, fmt)
    dense = P.dequantize.reference(Operand(*weight, fmt, k), torch.float32)
    x = (torch.rand(16, k, device="cuda") * dense[3].sign()).bfloat16().float()
    y = linear(x, Operand(*weight, fmt, x.shape[-1]), None, Quantizer(*NOTHING, "", None))
    assert excess(y, x, weight, fmt, "", torch.zeros(n, device="cuda")) <= 1


def test_compile_and_capture():
    model = (
        torch.nn.Sequential(torch.nn.Linear(512, 256), torch.nn.Linear(256, 64)).cuda().bfloat16()
    )
    bs.quantize_(
        model, bs.Recipe("mxfp4", rules={"1": {"weight": "int8_channel", "input": "int8_token"}})
    )
    x = torch.randn(5, 512, device="cuda").bfloat16()
    with torch.no_grad():
        expected = model(x)
        assert torch.equal(torch.compile(model, fullgraph=True)(x), expected)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x)
        x.copy_(torch.randn_like(x))
        graph.replay()
        assert torch.equal(y, model(x))
