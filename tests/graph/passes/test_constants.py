# SPDX-License-Identifier: BSD-3-Clause
"""What depends on constants alone."""

import pytest
import torch
import torch.nn.functional as F

from blockscale.graph.passes import FUSE, apply, constants
from tests.graph.passes.nets import Coded, graph_of, names, round_trip, same_after

X = torch.randn(3, 6, 64)


def test_views_of_scales_keep_their_name() -> None:
    def net(self, x):
        return round_trip(x, "int8:tensor:fp32", self.scale.view(1, 1, 1)) * 2

    graph = graph_of(net, X, scale=torch.full((), 0.05))
    assert same_after(graph, (constants,), X, X[:1]) == {"constants": 1}
    assert {name: tuple(b.shape) for name, b in graph.named_buffers()} == {"scale": (1, 1, 1)}


def test_a_weight_that_is_quantized_becomes_codes() -> None:
    """As a graph has it that torchao converted: no float copy is left, and no float is made."""

    def net(self, x):
        return F.linear(x, round_trip(self.weight, "int8:token:fp32"))

    graph = graph_of(net, X, weight=torch.randn(8, 64))
    same_after(graph, (constants,), X)
    assert names(graph) == ["blockscale.dequantize.default", "aten.linear.default"]
    assert {n: b.dtype for n, b in graph.named_buffers()} == {
        "weight.codes": torch.int8, "weight.scale": torch.float32,
    }  # fmt: skip


def test_chains_and_several_constants_fold_to_their_ends() -> None:
    def net(self, x):
        table = (self.a.t() @ self.b).relu().sum(0, keepdim=True) + torch.arange(64) * 0.5
        return x * table + table[..., 1:2]

    graph = graph_of(net, X, a=torch.randn(5, 7), b=torch.randn(5, 64))
    assert same_after(graph, (constants,), X)["constants"] == 2
    assert names(graph) == ["aten.mul.Tensor", "aten.add.Tensor"]


def test_a_dequantize_stays() -> None:
    weight = Coded(torch.randn(64, 64), "int8:channel0:fp32")
    graph = graph_of(lambda s, x: F.linear(x, s.w().view(64, 64).t()), X, w=weight)
    assert same_after(graph, (constants,), X) == {"constants": 0}
    assert not any(b.shape == (64, 64) and b.is_floating_point() for b in graph.buffers())


@pytest.mark.slow
def test_chance_and_growth_stay() -> None:
    graph = graph_of(
        lambda s, x: x * torch.rand(64) + s.a.expand(600, 600, 1).sum(), X, a=torch.ones(1)
    )
    before = names(graph)
    apply(graph, (constants,))
    assert "aten.rand.default" in names(graph) and len(names(graph)) <= len(before)
    large = graph_of(lambda s, x: x + torch.ones(2000, 2000, 1).sum(), X)
    same_after(large, (constants,), X)
    assert not list(large.buffers()) or max(b.numel() for b in large.buffers()) < 1 << 20


def test_a_constant_that_others_read_stays_too() -> None:
    graph = graph_of(lambda s, x: x * s.a + s.a.neg(), X, a=torch.randn(64))
    assert same_after(graph, FUSE, X)["constants"] == 1
    assert {name for name, _ in graph.named_buffers()} == {"a", "a_1"}
