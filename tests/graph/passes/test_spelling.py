# SPDX-License-Identifier: BSD-3-Clause
"""One spelling for ops that have several."""

import pytest
import torch
from torch import Tensor, nn

from blockscale.graph.passes import apply, spelling
from tests.graph.passes.nets import equal, exported, names, run, values_hold

X = torch.randn(2, 3, 4, 5)


def respelled(forward, x: Tensor, dynamic: bool = True) -> list[str]:
    """The ops of a function's graph, respelled, which computes the same as before."""

    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return forward(x)

    graph = exported(Net(), x, dynamic=dynamic)
    before = run(graph, x.clone())
    apply(graph, (spelling,))
    assert equal(run(graph, x.clone()), before)
    values_hold(graph, x)
    return names(graph)


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "forward",
    [
        lambda x: x.mT,
        lambda x: x.mH,
        lambda x: x.adjoint(),
        lambda x: x.swapaxes(1, -1),
        lambda x: x.swapdims(0, 2),
        lambda x: x.movedim(1, 3),
        lambda x: torch.movedim(x, source=(0, 1), destination=(2, 0)),
        lambda x: x.moveaxis((0, 2), (1, 3)),
    ],
)
def test_dimensions_in_another_order(forward) -> None:
    assert respelled(forward, X) == ["aten.permute.default"]


def test_a_matrix_and_a_vector() -> None:
    assert respelled(lambda x: x.T, X[0, 0]) == ["aten.permute.default"]
    assert respelled(lambda x: x.movedim(0, 0), X[0, 0, 0]) == ["aten.permute.default"]


def test_sizes() -> None:
    assert respelled(lambda x: x.ravel(), X) == ["aten.reshape.default"]
    other = torch.zeros(6, 20)
    assert respelled(lambda x: x.view_as(other), X, dynamic=False) == ["aten.reshape.default"]
    assert respelled(lambda x: x.reshape_as(other), X, dynamic=False) == ["aten.reshape.default"]


def test_sizes_that_are_symbols_stay() -> None:
    assert respelled(lambda x: x.view_as(x.abs()), X)[-1] == "aten.view_as.default"


def test_a_narrow_is_a_slice() -> None:
    assert respelled(lambda x: x.narrow(2, 1, 3), X) == ["aten.slice.Tensor"]
    assert respelled(lambda x: x.narrow(-1, 0, 5), X) == ["aten.slice.Tensor"]
    assert respelled(lambda x: x.narrow(1, -1, 1), X) == ["aten.narrow.default"]  # from the end


def test_the_conjugate_of_complex_numbers_stays() -> None:
    assert respelled(lambda x: torch.view_as_complex(x).mH, torch.randn(3, 4, 2)) == [
        "aten.view_as_complex.default",
        "aten.mH.default",
    ]
