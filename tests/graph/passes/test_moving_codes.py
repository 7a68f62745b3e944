# SPDX-License-Identifier: BSD-3-Clause
"""Every moving op on every kind of block."""

import pytest

from blockscale.graph.passes import moving
from tests.graph.passes.nets import graph_of, round_trip, same_after
from tests.support.moves_cases import FORMATS, MOVES, X, block_after

FEW = ("int8:tensor:fp32", "mxfp8", "int4:group16:fp32", "int8:tile3x32:fp32")


@pytest.mark.some(32)
@pytest.mark.parametrize(
    "fmt", [pytest.param(f, marks=[pytest.mark.slow] * (f not in FEW)) for f in FORMATS]
)
@pytest.mark.parametrize("move", MOVES)
def test_the_same_bits(move: str, fmt: str) -> None:
    """Whether the pass moves codes or leaves floats to move."""
    graph = graph_of(lambda _, x: MOVES[move](round_trip(x, fmt)) + 1, X)
    same_after(graph, (moving,), X, X[:2])


@pytest.mark.some(16)
@pytest.mark.parametrize("move", sorted(MOVES))
def test_one_scale_for_all_stays_that(move: str) -> None:
    """But for single elements of rows."""
    assert block_after(move, "int8:tensor:fp32") == ("" if move == "select last" else "tensor")


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("move", "bits", "moves"),
    [
        ("permute of the last", 4, False),
        ("permute", 4, True),
        ("slice of rows", 4, False),
        ("unsqueeze last", 4, False),
        ("unsqueeze last", 8, True),
        ("view", 4, True),
        ("view", 3, True),
        ("heads", 6, True),
    ],
)
def test_rows_of_packed_codes_stay_whole(move: str, bits: int, moves: bool) -> None:
    assert bool(block_after(move, f"int{bits}:token:fp32")) == moves


@pytest.mark.parametrize(
    "fmt", ["int8:flat32:fp32", "uint4:group16:fp16:offset", "book4:token:fp32"]
)
def test_what_has_parts_of_its_own_stays(fmt: str) -> None:
    assert block_after("permute", fmt) == ""
