# SPDX-License-Identifier: BSD-3-Clause
"""Quantizes that move up to what makes their floats."""

import pytest
import torch
import torch.nn.functional as F

from blockscale.graph.nodes import ours
from blockscale.graph.passes import FUSE, absorb, constants, fuse, moving
from tests.graph.passes.nets import Coded, graph_of, names, round_trip, same_after
from tests.support.passes_fuse import fused

X = torch.randn(3, 6, 64)
STATIC = "uint8:tensor:fp32:asym"
CONSTANTS = {
    "scale": torch.full((1, 1, 1, 1), 0.05),
    "zero": torch.full((1, 1, 1, 1), 120, dtype=torch.int32),
}


def heads(net, x):
    """A sum whose result is moved and then quantized by one scale."""
    y = round_trip(x, "int8:token:fp32") + 1.0
    y = y.view(x.shape[0], 6, 4, 16).transpose(1, 2)
    return round_trip(y, STATIC, net.scale, net.zero) * 2


@pytest.mark.slow
def test_one_scale_moves_through_views_to_the_op() -> None:
    graph = graph_of(heads, X, **CONSTANTS)
    changes = same_after(graph, (constants, fuse, absorb), X, X[:1])
    assert changes["absorb"] == 3  # two moves, and into the op
    call = next(each for each in fused(graph) if each.fused.name == "add_scalar")
    assert call.y.fmt == STATIC and call.y.scale.meta["val"].shape == (1, 1, 1)
    assert ours.quantize.default not in [n.target for n in graph.graph.nodes]


@pytest.mark.slow
@pytest.mark.parametrize("fmt", ["int8:token:fp32", "mxfp8"])
def test_scales_of_blocks_stay_where_they_are(fmt: str) -> None:
    def net(_, x):
        y = (round_trip(x, "mxfp8") + 1.0).view(x.shape[0] * 6, 64)
        return round_trip(y, fmt) * 2

    graph = graph_of(net, X)
    assert same_after(graph, (fuse, absorb), X)["absorb"] == 0


@pytest.mark.slow
def test_floats_that_others_read_are_not_taken() -> None:
    def net(self, x):
        y = (round_trip(x, "mxfp8") + 1.0).transpose(1, 2)
        return round_trip(y, STATIC, self.scale[0], self.zero[0]) + y

    graph = graph_of(net, X, **CONSTANTS)
    assert same_after(graph, (constants, fuse, absorb), X)["absorb"] == 0


@pytest.mark.slow
def test_packed_rows_stay_whole() -> None:
    scale = torch.full((1, 1, 1), 0.3)

    def net(self, x):
        y = (round_trip(x, "mxfp8") + 1.0).transpose(1, 2)
        return round_trip(y, "int4:tensor:fp32", self.scale) * 2

    def whole(self, x):
        y = (round_trip(x, "mxfp8") + 1.0).transpose(0, 1)
        return round_trip(y, "int4:tensor:fp32", self.scale) * 2

    for function, count in ((net, 0), (whole, 2)):
        graph = graph_of(function, X, scale=scale)
        assert same_after(graph, (constants, fuse, absorb), X)["absorb"] == count


def test_into_the_fused_op_before_it() -> None:
    """Also where the op came to be fused first."""

    def net(self, x):
        y = F.linear(round_trip(x, "int8:token:fp32"), self.weight())
        return round_trip(y.contiguous(), "mxfp8") * 2

    weight = Coded(torch.randn(32, 64), "int8:channel0:fp32")
    graph = graph_of(net, X, weight=weight)
    same_after(graph, FUSE, X, X[:2])
    call = next(each for each in fused(graph) if each.fused.name == "linear")
    assert call.y.fmt == "mxfp8"


@pytest.mark.slow
def test_attention_gives_codes() -> None:
    """What attention gives is moved as codes to the product behind it."""

    def net(self, x):
        q = x.view(x.shape[0], 6, 4, 16).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, q, q).transpose(1, 2).reshape(x.shape[0], 6, 64)
        y = round_trip(y, STATIC, self.scale[0], self.zero[0])
        return F.linear(y, self.weight())

    weight = Coded(torch.randn(32, 64), "int8:channel0:fp32")
    graph = graph_of(net, X, weight=weight, **CONSTANTS)
    same_after(graph, FUSE, X, X[:1])
    assert [(c.fused.name, bool(c.y.fmt)) for c in fused(graph)] == [
        ("sdpa", True),
        ("linear", False),
    ]
    assert "blockscale.quantize.default" not in names(graph)


def test_moving_and_absorbing_meet() -> None:
    graph = graph_of(heads, X, **CONSTANTS)
    changes = same_after(graph, (constants, moving, fuse, absorb), X)
    assert sum(changes.values()) > 0
