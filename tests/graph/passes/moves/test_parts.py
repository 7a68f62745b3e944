# SPDX-License-Identifier: BSD-3-Clause
"""What stands beside codes."""

import pytest
import torch

import blockscale as bs
from blockscale.core.block import read_block
from blockscale.graph.nodes import aten, each_call
from blockscale.graph.passes import moving
from blockscale.graph.passes.moves.parts import dim_of, of_block
from tests.graph.passes.nets import graph_of, round_trip, same_after

X = torch.randn(3, 6, 64)


@pytest.mark.parametrize("fmt", ["mxfp8", "uint4:group32:fp16:asym", "int8:group32:fp32:full:down"])
def test_a_format_of_another_block_keeps_the_rest(fmt: str) -> None:
    spelled = of_block(bs.parse(fmt), read_block("tile2x16"))
    form = bs.parse(fmt)
    assert bs.parse(spelled).block.name == "tile2x16"
    assert spelled.replace("tile2x16", form.block.name) == form.spelling


def test_dimensions_count_from_0() -> None:
    graph = graph_of(lambda _, x: x.select(-2, 1).unsqueeze(0) * 2, X)
    (node,) = each_call(graph, aten.select)
    assert dim_of(node, (3, 6, 64)) == 1


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)])
def test_one_scale_of_any_rank_moves(shape: tuple[int, ...]) -> None:
    def net(self, x):
        return round_trip(x, "int8:tensor:fp32", self.scale).transpose(1, 2).flatten(1) * 2

    graph = graph_of(net, X, scale=torch.full(shape, 0.05))
    assert same_after(graph, (moving,), X, X[:1])["moving"] == 2
