# SPDX-License-Identifier: BSD-3-Clause
"""Dropping what computes nothing."""

import pytest
import torch
from torch import Tensor, nn

from blockscale.graph.passes import apply, clean
from tests.graph.passes.nets import equal, exported, names, run, values_hold

X = torch.randn(3, 4)


class Idle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop, self.line = nn.Dropout(0.5), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.line(x)).contiguous().contiguous().detach()
        return x.to(torch.float32).expand(x.shape[0], 4).type_as(x) * 2


def test_what_computes_nothing_goes() -> None:
    graph = exported(Idle(), X)
    before = [run(graph, X), run(graph, X[:2])]
    assert apply(graph, (clean,))["clean"] >= 6
    assert names(graph) == ["aten.linear.default", "aten.mul.Tensor"]
    assert equal(run(graph, X), before[0]) and equal(run(graph, X[:2]), before[1])
    values_hold(graph, X)


def cleaned(forward, x: Tensor) -> list[str]:
    """What is left of a function's graph, which computes the same as before."""

    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return forward(x)

    graph = exported(Net(), x)
    before = run(graph, x.clone())
    apply(graph, (clean,))
    assert equal(run(graph, x.clone()), before)
    return names(graph)


def test_dropout_in_training_stays() -> None:
    left = cleaned(lambda x: torch.dropout(x, 1.0, True) + 1, X)
    assert left == ["aten.dropout.default", "aten.add.Tensor"]
    assert cleaned(lambda x: torch.dropout(x, 0.0, True) + 1, X) == ["aten.add.Tensor"]


@pytest.mark.slow
def test_conversions_and_layouts_that_change_something_stay() -> None:
    assert cleaned(lambda x: x.to(torch.float64) + 1, X) == ["aten.to.dtype", "aten.add.Tensor"]
    assert "aten.contiguous.default" in cleaned(lambda x: x.t().contiguous() + 1, X)
    assert "aten.to.dtype" in cleaned(lambda x: x.to(torch.float32, copy=True) + 1, X)
    assert "aten.view.default" in cleaned(lambda x: x.view(-1, 2, 2) + 1, X)


def test_a_copy_that_is_given_back_stays_a_copy() -> None:
    assert cleaned(lambda x: x.clone(), X) == ["aten.clone.default"]
    assert cleaned(lambda x: (x + 1).clone() * 2, X) == ["aten.add.Tensor", "aten.mul.Tensor"]


def test_ops_that_write_become_ops_that_do_not() -> None:
    assert cleaned(lambda x: (x + 1).relu_() * 2, X)[1] == "aten.relu.default"
    assert cleaned(lambda x: (x + 1).mul_(x).add_(x, alpha=2), X) == [
        "aten.add.Tensor", "aten.mul.Tensor", "aten.add.Tensor",
    ]  # fmt: skip


def test_a_write_that_others_see_stays() -> None:
    def seen_through_a_view(x: Tensor) -> Tensor:
        a = x + 1
        view = a.view(-1)
        a.relu_()
        return view + 1

    def copied_before(x: Tensor) -> Tensor:
        a = x + 1
        copy = a.clone()
        a.relu_()
        return a - copy

    assert "aten.relu_.default" in cleaned(seen_through_a_view, X)
    assert cleaned(copied_before, X)[1:] == ["aten.relu.default", "aten.sub.Tensor"]


def test_checks_go() -> None:
    graph = exported(nn.Identity(), X)
    x = next(n for n in graph.graph.nodes if n.op == "placeholder")
    output = next(iter(reversed(graph.graph.nodes)))
    with graph.graph.inserting_before(output):
        check = torch.ops.aten._assert_tensor_metadata.default
        graph.graph.call_function(check, (x,), {"dtype": torch.float32})
    assert apply(graph, (clean,)) == {"clean": 1}
    assert names(graph) == []
