# SPDX-License-Identifier: BSD-3-Clause
"""Moving ops on codes and scales in the place of floats; each op is in moves/."""

import torch

from blockscale.graph.nodes import ours
from blockscale.graph.passes import moving
from tests.graph.passes.nets import Coded, graph_of, names, round_trip, same_after
from tests.support.moves_cases import X


def test_indices_are_no_codes() -> None:
    """Integer index arithmetic has views too, and nothing is dequantized there."""

    def picked(net, x):
        index = torch.arange(6).view(2, 3).permute(1, 0).reshape(6) * 2 % 6
        return x.index_select(1, index) + net.table.view(64)

    graph = graph_of(picked, X, table=torch.randn(8, 8))
    before = names(graph)
    assert same_after(graph, (moving,), X)["moving"] == 0
    assert names(graph) == before


def test_a_weight_stays_as_it_is_stored() -> None:
    weight = Coded(torch.randn(8, 64), "int8:channel0:fp32")
    graph = graph_of(lambda net, x: x @ net.weight().t(), X, weight=weight)
    assert same_after(graph, (moving,), X)["moving"] == 0


def test_expand_waits_for_a_reader_of_codes() -> None:
    def seen(net, x):
        return torch.cumsum(round_trip(x, "int8:token:fp32").unsqueeze(1).expand(-1, 5, 6, 64), 1)

    graph = graph_of(seen, X)
    assert same_after(graph, (moving,), X)["moving"] == 1  # the unsqueeze
    assert ours.dequantize.default in [n.target for n in graph.graph.nodes]
