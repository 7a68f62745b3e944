# SPDX-License-Identifier: BSD-3-Clause
"""Blocks after slices, selections and expansions."""

import pytest
import torch
import torch.nn.functional as F

from blockscale.graph.passes import moving
from blockscale.graph.passes.moved_cuts import _block_bounds
from tests.graph.passes.nets import graph_of, round_trip, same_after
from tests.support.moves_cases import X, block_after


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("move", "fmt", "block"),
    [
        ("select last", "int8:tensor:fp32", ""),
        ("slice of rows", "int8:group16:fp32", "group16"),
        ("slice within a group", "int8:group16:fp32", ""),
        ("slice", "int8:tile3x32:fp32", ""),
        ("slice of rows", "int8:token:fp32", "token"),
        ("select", "int8:group2@1:fp32", "group1"),
        ("index_select", "int8:token:fp32", "token"),
        ("index_select", "int8:group2@1:fp32", ""),
        ("index_select of rows", "int8:channel-1:fp32", "channel-1"),
        ("index_select of rows", "int8:group16:fp32", ""),
    ],
)
def test_the_block_is_spelled_anew(move: str, fmt: str, block: str) -> None:
    assert block_after(move, fmt) == block


@pytest.mark.parametrize(
    ("start", "end", "step", "expected"),
    [
        (0, 32, 1, (0, 2, 1)),
        (16, 100, 1, (1, 3, 1)),
        (-16, None, 1, None),
        (32, 1 << 62, 1, (2, 3, 1)),
        (8, 32, 1, None),
        (0, 24, 1, None),
        (0, 32, 2, None),
    ],
)
def test_bounds_in_blocks(start: int, end: int | None, step: int, expected: tuple | None) -> None:
    """Of 40 elements in blocks of 16, the last of them partial."""
    assert _block_bounds(16, 40, start, end, step) == expected


# Codes that are joined and padded.


def test_cat_of_one_scale_and_of_several() -> None:
    scale, other = torch.full((1, 1, 1), 0.1), torch.full((1, 1, 1), 0.2)
    fmt = "int8:tensor:fp32"

    def joined(net, x):
        a, b = round_trip(x, fmt, net.scale), round_trip(x + 1, fmt, net.other)
        return torch.cat([a, b], 1) + 1

    for second, count in ((scale.clone(), 1), (other, 0)):
        graph = graph_of(joined, X, scale=scale, other=second)
        assert same_after(graph, (moving,), X, X[:1])["moving"] == count


@pytest.mark.some(5)
@pytest.mark.parametrize(
    ("fmt", "dim", "done"),
    [
        ("int8:token:fp32", 1, True),
        ("int8:token:fp32", -1, False),
        ("mxfp8", -1, True),
        ("mxfp8", 0, True),
        ("int4:group16:fp32", 2, True),
        ("int8:group48:fp32", 2, False),
        ("int8:tile4x32:fp32", 1, False),
        ("int8:tile3x32:fp32", 1, True),
        ("uint8:token:fp32:asym", 1, True),
        ("int8:channel-1:fp32", 1, False),
        ("nvfp4", 1, False),
    ],
)
def test_cat_of_blocks(fmt: str, dim: int, done: bool) -> None:
    graph = graph_of(
        lambda _, x: torch.cat([round_trip(x, fmt), round_trip(x * 2, fmt)], dim) + 1, X
    )
    assert same_after(graph, (moving,), X, X[:2])["moving"] == int(done)


@pytest.mark.parametrize(
    ("fmt", "zero", "done"),
    [("int8:tensor:fp32", None, True), ("uint8:tensor:fp32:asym", 7, True),
     ("e4m3:tensor:fp32", None, True), ("int8:token:fp32", None, False),
     ("binary:tensor:fp32", None, False)],
)  # fmt: skip
def test_padding_takes_the_code_of_zero(fmt: str, zero: int | None, done: bool) -> None:
    scale = None if "token" in fmt else torch.full((1, 1, 1), 0.05)
    point = None if zero is None else torch.full((1, 1, 1), zero, dtype=torch.int32)

    def padded(net, x):
        given = getattr(net, "scale", None)
        return F.pad(round_trip(x, fmt, given, getattr(net, "zero", None)), (1, 2, 0, 3)) * 2

    constants = {} if scale is None else {"scale": scale}
    constants |= {} if point is None else {"zero": point}
    graph = graph_of(padded, X, **constants)
    assert same_after(graph, (moving,), X, X[:1])["moving"] == int(done)


def test_padding_with_another_number_stays() -> None:
    scale = torch.full((1, 1, 1), 0.05)
    graph = graph_of(
        lambda net, x: F.pad(round_trip(x, "int8:tensor:fp32", net.scale), (1, 2), value=1.0) * 2,
        X, scale=scale,
    )  # fmt: skip
    assert same_after(graph, (moving,), X)["moving"] == 0
