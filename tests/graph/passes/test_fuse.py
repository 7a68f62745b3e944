# SPDX-License-Identifier: BSD-3-Clause
"""dequantize - op - quantize as one op."""

import pytest
import torch
import torch.nn.functional as F

from blockscale.graph.passes import clean, fuse
from tests.graph.passes.nets import Coded, graph_of, names, round_trip, same_after
from tests.support.passes_fuse import fused

X = torch.randn(3, 5, 64)
FORMATS = (
    "int8:tensor:fp32",
    "uint8:tensor:fp32:asym",
    "int8:token:fp32",
    "mxfp8",
    "bfp8",
    "nvfp4",
)
OPS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: torch.sub(a, b, alpha=2),
    "mul": lambda a, b: a * b,
    "maximum": torch.maximum,
    "matmul": lambda a, b: a @ b,
    "relu": lambda a, b: torch.relu(a),
    "gelu": lambda a, b: F.gelu(a, approximate="tanh"),
    "softmax": lambda a, b: a.softmax(-1),
    "layer_norm": lambda a, b: F.layer_norm(a, (64,)),
    "mean": lambda a, b: a.mean(1, keepdim=True),
    "amax": lambda a, b: a.amax(-1, keepdim=True),
    "cat": lambda a, b: torch.cat([a, b], 1),
    "add a number": lambda a, b: a + 1.5,
    "sdpa": lambda a, b: F.scaled_dot_product_attention(a, b, a),
}


FEW = ("uint8:tensor:fp32:asym", "mxfp8")


@pytest.mark.slow
@pytest.mark.some(40)
@pytest.mark.parametrize(
    "fmt", [pytest.param(f, marks=[pytest.mark.slow] * (f not in FEW)) for f in FORMATS]
)
@pytest.mark.parametrize("op", OPS)
def test_codes_in_and_out(op: str, fmt: str) -> None:
    def net(_, x):
        a, b = round_trip(x, fmt), round_trip(x * 2 + 1, "mxfp8")
        return round_trip(OPS[op](a, b), fmt)

    x = torch.randn(3, 64, 64)
    graph = graph_of(net, x)
    assert same_after(graph, (fuse,), x, x[:1])["fuse"] >= 1
    last = fused(graph)[-1]
    assert last.y.fmt and all(each.fmt for each in last.operands)
    torch.export.export(graph, (x,), dynamic_shapes=({0: torch.export.Dim("b", max=64)},))


@pytest.mark.slow
def test_any_of_the_operands_and_the_result() -> None:
    for first in (True, False):
        for second in (True, False):
            for result in (True, False):

                def net(_, x, parts=(first, second, result)):
                    a, b, y = (
                        (lambda t: round_trip(t, "mxfp8")) if part else (lambda t: t)
                        for part in parts
                    )
                    return y(a(x) + b(x - 1)) * 1.0

                graph = graph_of(net, X)
                changes = same_after(graph, (fuse,), X)
                sums = [each for each in fused(graph) if each.fused.name == "add"]
                assert len(sums) == int(first or second or result)
                if sums:
                    assert [bool(v.fmt) for v in sums[0].operands] == [first, second]
                    assert bool(sums[0].y.fmt) == result
                assert changes["fuse"] >= len(sums)


def test_floats_that_others_read_too_stay() -> None:
    def net(_, x):
        y = torch.relu(round_trip(x, "mxfp8"))
        return round_trip(y, "mxfp8") + y

    graph = graph_of(net, X)
    same_after(graph, (fuse,), X)
    first = fused(graph)[0]
    assert first.fused.name == "relu" and not first.y.fmt
    assert "blockscale.choose_quantize.default" in names(graph)[2:]


def test_a_dequantize_that_others_read_stays() -> None:
    def net(_, x):
        a = round_trip(x, "mxfp8")
        return torch.relu(a), torch.cumsum(a, 1)

    graph = graph_of(net, X)
    same_after(graph, (fuse,), X)
    assert "blockscale.dequantize.default" in names(graph)
    assert fused(graph)[0].operands[0].fmt


def test_a_static_scale_is_the_results() -> None:
    def net(self, x):
        a = round_trip(x, "int8:token:fp32")
        y = F.linear(a, self.weight(), self.bias)
        return round_trip(y, "uint8:tensor:fp32:asym", self.scale, self.zero)

    weight = Coded(torch.randn(8, 64), "int8:channel0:fp32")
    zero = torch.full((1, 1, 1), 100, dtype=torch.int32)
    constants = {"weight": weight, "bias": torch.randn(8), "scale": torch.full((1, 1, 1), 0.3)}
    graph = graph_of(net, X, **constants, zero=zero)
    assert same_after(graph, (fuse,), X, X[:2]) == {"fuse": 1}
    (call,) = fused(graph)
    assert call.y.fmt == "uint8:tensor:fp32:asym" and call.y.zero_point is not None
    assert call.operands[1].fmt == "int8:channel0:fp32" and call.settings["bias"] is not None


def test_a_linear_of_bfloat16_includes_its_conversions() -> None:
    def net(self, x):
        x = x.to(torch.bfloat16)
        y = F.linear(x.to(torch.float32), self.weight(), self.bias).to(torch.bfloat16)
        return round_trip(y, "mxfp8")

    weight = Coded(torch.randn(32, 64), "int8:channel0:fp32")
    graph = graph_of(net, X, weight=weight, bias=torch.randn(32))
    same_after(graph, (clean, fuse), X, X[:2])
    (call,) = fused(graph)
    assert call.dtype == torch.bfloat16 and not call.operands[0].fmt
    assert names(graph).count("aten.to.dtype") == 1  # that of the net


@pytest.mark.slow
def test_sums_in_bfloat16_are_not_those_of_float32() -> None:
    """A wide op computes in float32: a matmul of bfloat16 is another sum."""

    def net(_, x):
        a = round_trip(x.to(torch.bfloat16), "mxfp8")
        return a @ a.transpose(1, 2)

    def of_floats(_, x):
        low = x.to(torch.bfloat16)
        return round_trip(low @ low.transpose(1, 2), "int8:token:fp32")

    for function in (net, of_floats):
        assert same_after(graph_of(function, X), (fuse,), X) == {"fuse": 0}


def test_codes_of_another_dtype_are_not_taken() -> None:
    def net(_, x):
        return round_trip(x.to(torch.bfloat16), "mxfp8") + x

    graph = graph_of(net, X)
    assert same_after(graph, (fuse,), X) == {"fuse": 0}


def test_integers_are_no_operands() -> None:
    def net(self, x):
        index = (torch.arange(5) + self.shift) % 5
        return round_trip(x, "mxfp8").index_select(1, index)

    graph = graph_of(net, X, shift=torch.tensor([1, 2, 3, 4, 5]))
    assert same_after(graph, (fuse,), X) == {"fuse": 0}


def test_negative_dimensions() -> None:
    def net(_, x):
        a = round_trip(x, "mxfp8")
        return torch.cat([a, a], -2).mean((-1, -2)), a.softmax(-2), a.argmax(-1)

    graph = graph_of(net, X)
    assert same_after(graph, (fuse,), X, X[:1])["fuse"] >= 3
