"""Permutes that undo one another."""

import pytest
import torch
from torch import Tensor, nn

from blockscale.graph.passes import channels_last
from tests.graph.passes.nets import exported, graph_of, names, same_after


class Elementwise(nn.Module):
    """Between two permutes that undo one another: what stays in place, and what does not."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1) * 2


X = torch.randn(3, 5, 6, 8)


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (lambda x: x, 1),
        (torch.relu, 1),
        (lambda x: x.contiguous(), 1),
        (lambda x: x.relu().contiguous().abs() + x, 1),
        (lambda x: x.sigmoid(), 0),  # its last bits depend on where an element lies
        (lambda x: x * torch.arange(6.0), 0),  # along another dimension
        (lambda x: x.softmax(1), 0),
        (lambda x: x.mean(1, keepdim=True), 0),
        (lambda x: nn.functional.max_pool2d(x, 2), 0),
    ],
)
def test_channels_last(function, count: int) -> None:
    graph = exported(Elementwise(function), X)
    assert same_after(graph, (channels_last,), X, X[:1]) == {"channels_last": count}
    assert ("aten.permute.default" in names(graph)) == (count == 0)


def test_permutes_that_do_not_undo_one_another_stay() -> None:
    graph = graph_of(lambda _, x: x.permute(0, 2, 3, 1).permute(0, 2, 3, 1) * 2, X)
    assert same_after(graph, (channels_last,), X) == {"channels_last": 0}
    graph = graph_of(lambda _, x: x.transpose(1, -1).relu().transpose(-1, 1) * 2, X)
    assert same_after(graph, (channels_last,), X) == {"channels_last": 1}
