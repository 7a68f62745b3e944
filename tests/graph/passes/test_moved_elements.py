# SPDX-License-Identifier: BSD-3-Clause
"""Ops that put single elements elsewhere, on codes under one scale."""

from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import blockscale as bs
from blockscale.graph.nodes import aten, calls, ours
from blockscale.graph.passes import FUSE, cancel, moving
from tests.graph.passes.nets import graph_of, names, round_trip, same_after

X = torch.randn(2, 6, 64, generator=torch.Generator().manual_seed(0))
ORDER = torch.tensor([3, 0, 2, 1])


class Image(nn.Module):
    """All of them between two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(4, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).flip(1, -1).roll((1, 2), (2, 3))
        x = F.pixel_shuffle(F.pixel_unshuffle(F.channel_shuffle(x, 2), 2), 4)
        x = F.interpolate(x.repeat(1, 2, 1, 1), scale_factor=1.5)
        return self.last(x[:, ORDER].index_select(1, ORDER))


@cache
def fused(fmt: str) -> tuple[fx.GraphModule, fx.GraphModule, Tensor]:
    """A graph before and after it is fused, and what it reads."""
    torch.manual_seed(0)
    x = torch.randn(2, 4, 8, 8)
    shapes = ({0: torch.export.Dim("batch", min=1, max=64)},)
    program = torch.export.export(Image().eval(), (x,), dynamic_shapes=shapes)
    prepared = bs.graph.prepare(program, bs.Recipe("int8_channel", fmt), observer="min_max")
    prepared(x)
    converted = bs.graph.convert(prepared)
    return converted, bs.graph.fuse(converted), x


@pytest.mark.slow
@pytest.mark.parametrize("fmt", ["int8:tensor:fp32", "uint8:tensor:fp32:asym"])
def test_codes_stay_codes_between_two_convolutions(fmt: str) -> None:
    converted, graph, x = fused(fmt)
    called = names(graph)
    assert called.count("blockscale.quantize.default") == 1
    assert "blockscale.dequantize.default" not in called
    with bs.use("reference"), torch.no_grad():
        for batch in (x, x[:1] * 3):
            assert torch.equal(graph(batch), converted(batch))


@pytest.mark.parametrize(
    "move", [lambda x: x[:, [1, 0, 1]], lambda x: x.index_select(1, torch.tensor([1, 0, 1]))]
)
def test_codes_that_are_picked_by_index_cancel(move) -> None:
    def twice(net, x):
        y = move(round_trip(x, "int8:tensor:fp32", net.scale))
        return round_trip(y, "int8:tensor:fp32", net.scale) * 2

    graph = graph_of(twice, X, scale=torch.full((1, 1, 1), 0.05))
    assert same_after(graph, (moving, cancel), X, X[:1])["cancel"] == 1


@pytest.mark.parametrize(
    ("fmt", "moves"),
    [("int8:token:fp32", 2), ("int8:group2@1:fp32", 0), ("mxfp8", 0), ("int8:flat32:fp32", 0)],
)
def test_scales_by_row_follow_a_flip_and_a_roll(fmt: str, moves: int) -> None:
    graph = graph_of(lambda _, x: round_trip(x, fmt).flip(1, 2).roll(5, 1) * 2, X)
    assert same_after(graph, (moving,), X)["moving"] == moves


@pytest.mark.parametrize(
    "move",
    [
        lambda x: F.interpolate(x, scale_factor=2).cumsum(1),  # more would be dequantized
        lambda x: x[:, x[0, :, 0] > 0].relu(),  # only data tell how many
        lambda x: F.interpolate(x.transpose(0, 2), size=(5,)).relu(),  # of a size that is a symbol
        lambda x: F.interpolate(x, scale_factor=2, mode="linear").relu(),
    ],
)
def test_what_stays_in_float(move) -> None:
    graph = graph_of(lambda _, x: move(round_trip(x, "int8:tensor:fp32")) * 2, X)
    same_after(graph, FUSE, X)
    (moved,) = [
        node
        for node in graph.graph.nodes
        if calls(node, aten.upsample_nearest1d, aten.upsample_linear1d, aten.index)
    ]
    assert moved.meta["val"].dtype == torch.float32
    assert ours.quantize.default not in [user.target for user in moved.users]
