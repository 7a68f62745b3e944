# SPDX-License-Identifier: BSD-3-Clause
"""One of each."""

import pytest
import torch
import torch.nn.functional as F

from blockscale.graph.passes import duplicates
from tests.graph.passes.nets import Coded, graph_of, names, round_trip, same_after

X = torch.randn(3, 6, 64)


@pytest.mark.slow
def test_equal_quantizes_of_one_tensor() -> None:
    """Whether the scale is chosen, or given under several names with equal bits."""
    fmt = "int8:tensor:fp32"

    def net(self, x):
        a, b = round_trip(x, fmt, self.a), round_trip(x, fmt, self.b)
        c, d = round_trip(x, "mxfp8"), round_trip(x, "mxfp8")
        return a * b + c * d + round_trip(x, fmt, self.other)

    scale = torch.full((1, 1, 1), 0.05)
    graph = graph_of(net, X, a=scale, b=scale.clone(), other=scale * 2)
    same_after(graph, (duplicates,), X, X[:1])
    assert names(graph).count("blockscale.quantize.default") == 2
    assert names(graph).count("blockscale.choose_quantize.default") == 1
    assert {name for name, _ in graph.named_buffers()} == {"a", "other"}


def test_constants_that_are_no_scales_keep_their_names() -> None:
    def net(self, x):
        return x * self.a + x / self.b

    graph = graph_of(net, X, a=torch.ones(64), b=torch.ones(64))
    assert same_after(graph, (duplicates,), X) == {"duplicates": 0}


@pytest.mark.slow
def test_what_only_looks_equal() -> None:
    def net(self, x):
        zeros = x * 0.0 + x * -0.0, x * 1 + x * 1.0, x.sum(1) + x.sum(-1)[..., :1]
        return zeros, F.dropout(x, 0.5) - F.dropout(x, 0.5)

    graph = graph_of(lambda self, x: net(self, x)[0], X)
    before = len(names(graph))
    same_after(graph, (duplicates,), X)
    assert len(names(graph)) >= before - 1  # the sizes
    chance = graph_of(lambda self, x: torch.rand_like(x) - torch.rand_like(x), X)
    from blockscale.graph.passes import apply

    assert apply(chance, (duplicates,)) == {"duplicates": 0}


def test_stochastic_rounding_without_a_seed_is_drawn_each_time() -> None:
    fmt = "int8:tensor:fp32:stochastic"
    scale = torch.full((1, 1, 1), 0.05)
    from blockscale.graph.passes import apply

    graph = graph_of(lambda s, x: round_trip(x, fmt, s.a) - round_trip(x, fmt, s.a), X, a=scale)
    apply(graph, (duplicates,))
    assert names(graph).count("blockscale.quantize.default") == 2


def test_weights_are_dequantized_once() -> None:
    weight = Coded(torch.randn(64, 64), "int8:channel0:fp32")
    graph = graph_of(lambda s, x: F.linear(x, s.w()) + F.linear(x + 1, s.w()), X, w=weight)
    same_after(graph, (duplicates,), X)
    assert names(graph).count("blockscale.dequantize.default") == 1
