# SPDX-License-Identifier: BSD-3-Clause
"""Blocks after views and permutes."""

import pytest
import torch

from blockscale.graph.passes import moving
from tests.graph.passes.nets import Function, exported, round_trip, same_after
from tests.support.moves_cases import block_after


@pytest.mark.some(7)
@pytest.mark.parametrize(
    ("move", "fmt", "block"),
    [
        ("view", "int8:group16:fp32", "group16"),
        ("view", "int8:group32:fp32", "tile2x16"),
        ("view", "int8:group8:fp32", "group8"),
        ("view", "int8:token:fp32", "block*x*"),
        ("view of rows", "int8:token:fp32", "token"),
        ("view of all", "int8:token:fp32", "group64"),
        ("permute", "int8:token:fp32", "token"),
        ("permute of the last", "int8:token:fp32", "block*x1x1"),
        ("permute of the last", "int8:group16:fp32", "group16@-3"),
        ("permute of the last", "int8:channel-1:fp32", "channel0"),
        ("heads", "int8:group16:fp32", "group16"),
        ("transpose", "int8:channel-1:fp32", "channel-1"),
        ("view", "int8:flat32:fp32", ""),
        ("view", "int4:group16:fp32", "group16"),
        ("permute of the last", "int4:group16:fp32", ""),
        ("unflatten", "int3:group32:fp32", "group32"),
    ],
)
def test_the_block_is_spelled_anew(move: str, fmt: str, block: str) -> None:
    assert block_after(move, fmt) == block


def test_a_permute_of_a_square_permutes_its_block() -> None:
    """[8, 8] under channel1: [1, 8] becomes [8, 1], of channel0."""
    x = torch.randn(8, 8)
    net = Function(lambda _, x: round_trip(x, "int8:channel1:fp32").t() + 1)
    assert same_after(exported(net, x, dynamic=False), (moving,), x)["moving"] == 1
