# SPDX-License-Identifier: BSD-3-Clause
"""Linears of one tensor as one."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blockscale.graph.passes import apply, clean, duplicates, merge_products
from tests.graph.passes.nets import Coded, graph_of, names, round_trip, run, values_hold

X = torch.randn(3, 5, 64)


def attention(net: nn.Module, x: Tensor) -> Tensor:
    x = round_trip(x, "int8:token:fp32")
    q, k, v = (F.linear(x, getattr(net, n)(), getattr(net, f"{n}_bias")) for n in "qkv")
    q, k, v = (y.view(*y.shape[:-1], 2, -1).transpose(1, 2) for y in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape[0], 5, -1)


def merged(fmt: str, rows: tuple[int, ...] = (16, 16, 16), **other: Tensor | None) -> int:
    torch.manual_seed(1)
    parts = {n: Coded(torch.randn(r, 64), fmt) for n, r in zip("qkv", rows, strict=True)}
    bias = {f"{n}_bias": torch.randn(r) for n, r in zip("qkv", rows, strict=True)} | other
    graph = graph_of(attention, X, **parts, **bias)
    before = [run(graph, x)[0] for x in (X, X[:1])]
    count = apply(graph, (clean, duplicates, merge_products))["merge_products"]
    for x, expected in zip((X, X[:1]), before, strict=True):
        assert (run(graph, x)[0] - expected).abs().max() <= 1e-6 * expected.abs().max()
        values_hold(graph, x)
    assert names(graph).count("aten.linear.default") == (1 if count else 3)
    if count:
        stored = {name for name, _ in graph.named_buffers()}
        assert {"q_k_v.weight.codes", "q_k_v.weight.scale", "q_k_v.bias"} <= stored
        assert not any(name.startswith(("q.", "k.", "v.")) for name in stored)
    return count


@pytest.mark.slow
@pytest.mark.some(8)
@pytest.mark.parametrize(
    ("fmt", "count"),
    [
        ("int8:channel0:fp32", 1),
        ("int4:group16:fp32", 1),
        ("mxfp8", 1),
        ("uint4:group32:fp32:asym", 1),
        ("int8:tile8x32:fp32", 1),
        ("int3:group32:fp32", 1),
        ("int8:tile12x32:fp32", 0),
        ("int8:tensor:fp32", 0),
        ("int8:channel1:fp32", 0),
        ("nvfp4", 0),
        ("int8:flat32:fp32", 0),
        ("int4:group32:(uint6:group2:fp16)", 1),
    ],
)
def test_where_blocks_allow(fmt: str, count: int) -> None:
    assert merged(fmt) == count


def test_unequal_sizes() -> None:
    def parts(net, x):
        return torch.cat([F.linear(x, net.q()), F.linear(x, net.k())], -1) * 2

    q, k = Coded(torch.randn(16, 64), "mxfp8"), Coded(torch.randn(8, 64), "mxfp8")
    graph = graph_of(parts, X, q=q, k=k)
    before = run(graph, X)[0]
    assert apply(graph, (merge_products,)) == {"merge_products": 1}
    assert (run(graph, X)[0] - before).abs().max() <= 1e-6 * before.abs().max()


def test_one_without_a_bias_stays() -> None:
    torch.manual_seed(1)

    def two(net, x):
        return F.linear(x, net.q(), net.b) + F.linear(x, net.k())

    q, k = (Coded(torch.randn(16, 64), "int8:channel0:fp32") for _ in range(2))
    graph = graph_of(two, X, q=q, k=k, b=torch.randn(16))
    assert apply(graph, (merge_products,)) == {"merge_products": 0}


def test_one_scale_that_is_the_same_is_one() -> None:
    def two(net, x):
        return F.linear(x, net.q()) - F.linear(x, net.k())

    q, k = (Coded(torch.randn(16, 64), "int8:tensor:fp32") for _ in range(2))
    k.scale.copy_(q.scale)
    graph = graph_of(two, X, q=q, k=k)
    before = run(graph, X)[0]
    assert apply(graph, (merge_products,)) == {"merge_products": 1}
    assert (run(graph, X)[0] - before).abs().max() <= 1e-6 * before.abs().max()


@pytest.mark.slow
def test_results_that_are_quantized_or_activated_stay_with_their_product() -> None:
    fmt = "int8:channel0:fp32"

    def gated(net, x):
        return F.silu(F.linear(x, net.q())) * F.linear(x, net.k())

    def quantized(net, x):
        return round_trip(F.linear(x, net.q()), "mxfp8") * F.linear(x, net.k())

    def other_input(net, x):
        return F.linear(x, net.q()) * F.linear(x + 1, net.k())

    def tied(net, x):
        w = net.q()
        return F.linear(x, w) * F.linear(x, w) + F.linear(x, net.k())

    for function in (gated, quantized, other_input):
        q, k = (Coded(torch.randn(16, 64), fmt) for _ in range(2))
        graph = graph_of(function, X, q=q, k=k)
        assert apply(graph, (merge_products,)) == {"merge_products": 0}
    q, k = (Coded(torch.randn(16, 64), fmt) for _ in range(2))
    assert apply(graph_of(tied, X, q=q, k=k), (merge_products,)) == {"merge_products": 0}
