# SPDX-License-Identifier: BSD-3-Clause
"""What stands beside codes."""

import pytest
import torch

import blockscale as bs
from blockscale.core.block import read_block
from blockscale.graph.nodes import aten, each_call
from blockscale.graph.passes import moving
from blockscale.graph.passes.moved_blocks import dim_of, of_block
from tests.graph.passes.nets import graph_of, names, round_trip, same_after
from tests.support.moves_cases import X as CasesX
from tests.support.moves_cases import block_after

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


# Splits, chunks and unbinds of codes, as slices.


@pytest.mark.parametrize(
    ("move", "fmt", "block"),
    [
        ("split", "int8:token:fp32", "token"),
        ("split", "int8:group2@1:fp32", "group2@1"),
        ("split of rows", "int8:group16:fp32", "group16"),
        ("split of rows", "int4:group16:fp32", ""),
        ("split within a group", "int8:group16:fp32", ""),
        ("chunk", "e4m3:group32:e8m0/floor", "group32"),
        ("unbind", "int8:token:fp32", "token"),
    ],
)
def test_the_block_is_spelled_anew(move: str, fmt: str, block: str) -> None:
    assert block_after(move, fmt) == block


def test_every_piece_is_cut() -> None:
    def halves(net, x):
        first, second, _ = round_trip(x, "int8:token:fp32").split([2, 3, 1], 1)
        return first * 3, second * 2

    graph = graph_of(halves, CasesX)
    same_after(graph, (moving,), CasesX)
    assert "split_with_sizes" not in " ".join(names(graph))


def test_floats_are_split_as_before() -> None:
    graph = graph_of(lambda net, x: x.split(4, 1)[0], CasesX)
    assert same_after(graph, (moving,), CasesX)["moving"] == 0
    assert any("split" in name for name in names(graph))
