# SPDX-License-Identifier: BSD-3-Clause
"""Running passes one after the other."""

import pytest
import torch

from blockscale.graph.nodes import aten, call
from blockscale.graph.passes import FLOAT, FUSE, apply
from tests.graph.passes.nets import graph_of, names, round_trip, run

X = torch.randn(3, 4)


def test_every_pass_says_what_it_does() -> None:
    for each in (*FLOAT, *FUSE):
        assert each.__doc__ and each.run.__doc__
    floats = [each.__name__.rpartition(".")[2] for each in FLOAT]
    assert floats == ["spelling", "clean", "fold_batch_norm"]


def test_changes_are_counted_until_there_are_none() -> None:
    graph = graph_of(lambda _, x: torch.relu(round_trip(x, "int8:token:fp32").detach()), X)
    before = run(graph, X)[0]
    changes = apply(graph, FUSE)
    assert changes["clean"] >= 1 and changes["fuse"] == 1
    assert set(changes) == {each.__name__.rpartition(".")[2] for each in FUSE}
    assert not any(apply(graph, FUSE).values())
    assert torch.equal(run(graph, X)[0], before)
    assert "blockscale.fused_relu.default" in names(graph)


def test_passes_without_an_end_are_an_error() -> None:
    class Endless:
        __name__ = "passes.endless"

        def run(self, graph) -> int:
            return 1

    with pytest.raises(
        RuntimeError, match=r"still change the graph after 50 rounds: \{'endless': 50\}"
    ):
        apply(graph_of(lambda _, x: x + 1, X), (Endless(),))


def test_a_broken_graph_is_an_error() -> None:
    class Breaks:
        __name__ = "passes.breaks"

        def run(self, graph) -> int:
            first, last = (n for n in graph.graph.nodes if n.op == "call_function")
            made = call(graph, aten.relu.default, (first,), like=last)
            last.args = (made, 1)
            made.append(first)  # read before it is there
            return 1

    graph = graph_of(lambda _, x: (x + 1) * 2, X)
    with pytest.raises(RuntimeError):
        apply(graph, (Breaks(),))
