# SPDX-License-Identifier: BSD-3-Clause
"""Sums and their layer norms."""

import pytest
import torch
import torch.nn.functional as F

from blockscale.graph.passes import fuse_norm
from tests.graph.passes.nets import graph_of, names, round_trip, same_after
from tests.support.passes_fuse import fused

X = torch.randn(3, 5, 64)


def graph_with(first: str, second: str, result: str, alpha: float = 1.0, readers: int = 1):
    def net(self, x):
        a = round_trip(x, first) if first else x
        b = round_trip(x * x, second) if second else x * x
        total = torch.add(a, b, alpha=alpha)
        y = F.layer_norm(total, (64,), self.weight, self.bias, 1e-3)
        y = round_trip(y, result) if result else y
        return y if readers == 1 else y + total

    return graph_of(net, X, weight=torch.rand(64), bias=torch.randn(64))


@pytest.mark.parametrize("formats", [("mxfp8", "", ""), ("", "", "int8:token:fp32"),
                                     ("mxfp8", "int8:tensor:fp32", "bfp8")])  # fmt: skip
def test_where_codes_go_in_or_come_out(formats: tuple[str, str, str]) -> None:
    graph = graph_with(*formats)
    assert same_after(graph, (fuse_norm,), X, X[:1]) == {"fuse_norm": 1}
    (call,) = fused(graph)
    assert call.fused.name == "add_layer_norm" and call.settings["eps"] == 1e-3
    assert "aten.layer_norm.default" not in names(graph)


@pytest.mark.slow
def test_where_it_does_not_apply() -> None:
    graphs = [graph_with("", "", ""), graph_with("mxfp8", "", "", alpha=2.0)]
    for graph in (*graphs, graph_with("mxfp8", "", "mxfp8", readers=2)):
        assert same_after(graph, (fuse_norm,), X) == {"fuse_norm": 0}
