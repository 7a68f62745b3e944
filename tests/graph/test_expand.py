# SPDX-License-Identifier: BSD-3-Clause
"""Ops of ours written out as quantize, dequantize and torch's ops: the same bits."""

import copy

import pytest
import torch
from torch import nn
from torch.export import Dim

import blockscale as bs
from blockscale.graph.expand import expand
from blockscale.graph.program import exported, import_graph
from tests.support import graph_models as models

FORMATS = ["int8:tensor:fp32", "uint8:tensor:fp32:asym", "int8_token", "mxfp8", "nvfp4",
           "uint4:group4:fp16:asym(fp16)", "int4:group4:(uint6:tensor:fp32)",
           "uint4:group4:fp16:offset"]  # fmt: skip
FEW = (None, "uint8:tensor:fp32:asym", "nvfp4")


def quantized(model, fmt, weight="int8_channel"):
    bs.quantize_(model, bs.Recipe(weight, fmt, "int8_token" if fmt else None))
    return model.eval()


def assert_same(model, *shapes, free=True):
    x, other = (torch.randn(shape) for shape in shapes)
    sizes = ({0: Dim("rows")},) if free else None
    graph = import_graph(torch.export.export(model, (x,), dynamic_shapes=sizes))
    assert expand(graph) > 0
    targets = {str(n.target) for n in graph.graph.nodes}
    allowed = ("quantize", "choose_quantize", "dequantize", "embedding")
    assert not [
        t for t in targets if t.startswith("blockscale.") and t.split(".")[1] not in allowed
    ]
    assert all(n.meta.get("val") is not None for n in graph.graph.nodes if n.op == "call_function")
    with bs.use("reference"), torch.no_grad():
        assert torch.equal(graph(other), model(other))
        assert torch.equal(exported(graph).module()(other), model(other))


@pytest.mark.some(10)
@pytest.mark.parametrize("fmt", [None, *FORMATS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_linear(fmt, dtype):
    model = quantized(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4, bias=False)), fmt)
    graph = import_graph(torch.export.export(model.to(dtype), (torch.randn(3, 8, dtype=dtype),)))
    expand(graph)
    x = torch.randn(3, 8).to(dtype)
    with bs.use("reference"), torch.no_grad():
        assert torch.equal(graph(x), model(x)) and graph(x).dtype == dtype


@pytest.mark.slow
@pytest.mark.some(3)
@pytest.mark.parametrize(
    "fmt",
    [pytest.param(f, marks=[pytest.mark.slow] * (f not in FEW)) for f in (None, *FORMATS)],
)
def test_net(fmt):
    assert_same(quantized(copy.deepcopy(models.net()[0]), fmt), (2, 3, 8, 8), (3, 3, 8, 8))


@pytest.mark.slow
@pytest.mark.some(6)
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
def test_convolutions(dims, kind):
    layer = getattr(nn, f"{kind}{dims}d")(4, 6, 3, stride=2, padding=1, groups=2)
    model = quantized(nn.Sequential(layer, nn.ReLU()), "mxint8", "int4:group8:fp32")
    size = (5,) * dims
    assert_same(model, (2, 4, *size), (3, 4, *size))


@pytest.mark.slow
def test_static_scales_get_the_rank_of_their_tensor():
    model = nn.Sequential(nn.Linear(8, 4))
    bs.calibrate(
        model, [torch.randn(5, 8)], bs.Recipe("int8", "int8:channel-1:fp32"), progress=False
    )
    assert_same(model, (2, 3, 8), (4, 3, 8))


def test_a_row_of_a_free_size():
    class Rows(nn.Module):
        def forward(self, x):
            return bs.fake_quantize(x, "int8_token")

    program = torch.export.export(Rows(), (torch.randn(2, 6),), dynamic_shapes=({1: Dim("k")},))
    graph = import_graph(program)
    assert expand(graph) == 1
    x = torch.randn(2, 11)
    assert torch.equal(graph(x), bs.fake_quantize(x, "int8_token"))


@pytest.mark.slow
def test_quantized_biases():
    model = nn.Sequential(nn.Linear(8, 4))
    recipe = bs.Recipe("int8_channel", "int8:tensor:fp32", bias="int32")
    bs.calibrate(model, [torch.randn(5, 8)], recipe, progress=False)
    assert_same(model, (2, 8), (3, 8))
