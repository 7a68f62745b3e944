# SPDX-License-Identifier: BSD-3-Clause
"""Splits, chunks and unbinds of codes, as slices."""

import pytest

from blockscale.graph.passes import moving
from tests.graph.passes.moves.cases import X, block_after
from tests.graph.passes.nets import graph_of, names, round_trip, same_after


@pytest.mark.some(3)
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

    graph = graph_of(halves, X)
    same_after(graph, (moving,), X)
    assert "split_with_sizes" not in " ".join(names(graph))


def test_floats_are_split_as_before() -> None:
    graph = graph_of(lambda net, x: x.split(4, 1)[0], X)
    assert same_after(graph, (moving,), X)["moving"] == 0
    assert any("split" in name for name in names(graph))
