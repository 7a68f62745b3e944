# SPDX-License-Identifier: BSD-3-Clause
"""Constant factors into a weight's scale and bias."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import blockscale as bs
from blockscale.graph.nodes import dequantize_of
from blockscale.graph.passes import apply, fold_mul
from blockscale.graph.passes.fold_mul import scaled
from tests.graph.passes.nets import Coded, graph_of, names, run, values_hold

X = torch.randn(3, 6, 32)
N = 8


def linear(net: nn.Module, x: Tensor) -> Tensor:
    return F.linear(x, net.weight(), net.bias) * net.c


def folded(function, fmt: str, c: Tensor, bias: Tensor | None = None, x: Tensor = X, n: int = N):
    """How many factors the pass folds; results are those of before but for rounding."""
    weight = Coded(torch.randn(n, 32, generator=torch.Generator().manual_seed(0)), fmt)
    graph = graph_of(function, x, weight=weight, c=c, bias=bias)
    before = run(graph, x)[0]
    count = apply(graph, (fold_mul,))["fold_mul"]
    after = run(graph, x)[0]
    assert (after - before).abs().max() <= 1e-6 * before.abs().max()
    values_hold(graph, x)
    assert any(".mul" in name for name in names(graph)) == (count == 0)
    return count, graph


@pytest.mark.pairs
@pytest.mark.some(16)
@pytest.mark.parametrize("bias", [None, torch.randn(N)])
@pytest.mark.parametrize(
    "fmt",
    ["int8:channel0:fp32", "int4:group8:fp32", "int4:group4:fp32", "uint4:group8:fp32:asym",
     "e4m3:token:fp32", "int8:tile1x16:fp32"],
)  # fmt: skip
@pytest.mark.parametrize("shape", [(N,), (1, N), (1, 1, N), (), (1,), (1, 1, 1)])
def test_a_factor_of_each_output(fmt: str, bias: Tensor | None, shape: tuple[int, ...]) -> None:
    count, graph = folded(linear, fmt, torch.rand(shape) + 0.5, bias)
    assert count == 1
    scale = next(dequantize_of(n) for n in graph.graph.nodes if dequantize_of(n)).operand.scale
    assert tuple(scale.meta["val"].shape) == tuple(bs.quantize(torch.zeros(N, 32), fmt).scale.shape)


@pytest.mark.slow
def test_a_square_of_channels_and_groups() -> None:
    """8 outputs and 8 groups: a factor [8] that broadcast along groups would go unnoticed by
    shapes."""
    count, _ = folded(linear, "int4:group4:fp32", torch.arange(1.0, 9.0))
    assert count == 1
    x = torch.randn(3, 8, 32)
    assert folded(linear, "int4:group4:fp32", torch.arange(1.0, 9.0), x=x)[0] == 1


@pytest.mark.parametrize("shape", [(6, 1), (6, N), (3, 1, 1), (1, 1, 1, N), (1, 6, 1)])
def test_a_factor_of_something_else_stays(shape: tuple[int, ...]) -> None:
    x = X if shape[0] != 3 else X[:3]
    weight = Coded(torch.randn(N, 32), "int8:channel0:fp32")
    if shape[0] == 3:
        return  # [batch] would make the batch a constant
    graph = graph_of(linear, x, weight=weight, c=torch.rand(shape) + 1, bias=None)
    assert apply(graph, (fold_mul,)) == {"fold_mul": 0}


@pytest.mark.parametrize("value", [0.0, -1.5, float("nan"), float("inf")])
def test_factors_that_no_scale_takes(value: float) -> None:
    c = torch.ones(N)
    c[3] = value
    weight = Coded(torch.randn(N, 32), "int8:channel0:fp32")
    graph = graph_of(linear, X, weight=weight, c=c, bias=None)
    assert apply(graph, (fold_mul,)) == {"fold_mul": 0}


def test_a_negative_factor_and_a_scale_with_a_sign() -> None:
    assert folded(linear, "int4:channel0:fp32:signed", -torch.rand(N) - 1, torch.randn(N))[0] == 1


@pytest.mark.some(4)
@pytest.mark.parametrize(
    ("fmt", "c", "count"),
    [
        ("mxfp8", torch.tensor(0.25), 1),
        ("mxfp8", torch.full((N,), 8.0), 1),
        ("mxfp8", torch.tensor(0.3), 0),
        ("int8:channel0:pow2/floor", torch.tensor(0.5), 1),
        ("int8:channel0:pow2/floor", torch.tensor(3.0), 0),
        ("int8:channel0:bf16", torch.tensor(0.3), 0),
        ("int8:channel0:bf16", torch.tensor(4.0), 1),
        ("nvfp4", torch.tensor(0.3), 1),
        ("nvfp4", torch.rand(N) + 1, 0),
        ("int8:tensor:fp32", torch.rand(N) + 1, 0),
        ("int8:tensor:fp32", torch.tensor(0.3), 1),
        ("int8:tile2x16:fp32", torch.rand(N) + 1, 0),
        ("int8:tile2x16:fp32", torch.tensor(0.3), 1),
    ],
)
def test_what_a_scale_takes(fmt: str, c: Tensor, count: int) -> None:
    assert folded(linear, fmt, c)[0] == count


def test_powers_of_two_are_exact_and_end_somewhere() -> None:
    fmt = bs.parse("mxfp8")
    scale = torch.tensor([[1, 100], [250, 254]], dtype=torch.uint8)
    assert scaled(scale, torch.tensor([[4.0], [0.5]]), fmt).tolist() == [[3, 102], [249, 253]]
    assert scaled(scale, torch.tensor([[0.5], [1.0]]), fmt) is None
    assert scaled(scale, torch.tensor([[1.0], [2.0]]), fmt) is None
    floats = bs.parse("int8:channel0:fp32")
    assert scaled(torch.tensor([[1e38]]), torch.tensor([[10.0]]), floats) is None
    assert scaled(torch.tensor([[1e-38]]), torch.tensor([[0.1]]), floats) is None


def test_a_number_is_a_factor() -> None:
    def by_number(net, x):
        return F.linear(x, net.weight()) * 0.125

    assert folded(by_number, "mxfp8", torch.ones(1))[0] == 1


def conv(net: nn.Module, x: Tensor) -> Tensor:
    weight = net.weight().view(N, 2, 2, 8).permute(0, 3, 1, 2)
    return F.conv2d(x, weight, net.bias).contiguous() * net.c


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("shape", "count"), [((N, 1, 1), 1), ((1, N, 1, 1), 1), ((), 1), ((N,), 0), ((1, 1, 8), 0),
                         ((N, 1), 0), ((1, 1, N, 1), 0)],
)  # fmt: skip
def test_convolutions_have_channels_second(shape: tuple[int, ...], count: int) -> None:
    """The image is 8 x 8 and there are 8 channels: only the dimension tells which is meant."""
    x = torch.randn(3, 8, 9, 9)
    c = torch.rand(shape) + 0.5
    assert folded(conv, "int8:channel0:fp32", c, torch.randn(N), x)[0] == count


@pytest.mark.slow
def test_where_others_read() -> None:
    def two_readers(net, x):
        y = F.linear(x, net.weight())
        return y * net.c + y

    def no_constant(net, x):
        return F.linear(x, net.weight()) * x.sum()

    def coded_bias(net, x):
        return F.linear(x, net.weight(), net.other()) * net.c

    weight = Coded(torch.randn(N, 32), "int8:channel0:fp32")
    bias = Coded(torch.randn(N), "int8:tensor:fp32")
    for function in (two_readers, no_constant, coded_bias):
        graph = graph_of(function, X, weight=weight, c=torch.rand(N), other=bias)
        assert apply(graph, (fold_mul,)) == {"fold_mul": 0}


def test_a_tied_weight_keeps_its_scale() -> None:
    def tied(net, x):
        y = net.weight()
        return F.linear(x, y) * net.c + F.linear(x, y)

    weight = Coded(torch.randn(N, 32), "int8:channel0:fp32")
    graph = graph_of(tied, X, weight=weight, c=torch.rand(N) + 1)
    before = run(graph, X)[0]
    assert apply(graph, (fold_mul,)) == {"fold_mul": 1}
    assert (run(graph, X)[0] - before).abs().max() <= 1e-6 * before.abs().max()
    assert {"weight.scale", "weight.scale_1"} <= {name for name, _ in graph.named_buffers()}
