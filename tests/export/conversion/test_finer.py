"""Blocks in smaller blocks, against an index for each element."""

import pytest
import torch

from blockscale.core.block import read_block
from blockscale.export.conversion.finer import finer, nested

SHAPE = (6, 96)


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("tensor", "channel0"), ("tensor", "group32"), ("channel0", "group48"),
        ("token", "group32"), ("tensor", "tensor"),
        ("tile2x64", "group32"), ("tile4x96", "tile2x32"), ("group64", "group32"),
    ],
)  # fmt: skip
def test_numbers_of_smaller_blocks(outer: str, inner: str) -> None:
    large, small = read_block(outer), read_block(inner)
    assert nested(large, small, SHAPE)
    count = large.scale_shape(SHAPE)
    numbers = torch.arange(torch.Size(count).numel()).reshape(count)
    found = finer(numbers, large, small, SHAPE)
    assert tuple(found.shape) == small.scale_shape(SHAPE)
    assert torch.equal(
        small.expand(found, SHAPE).expand(SHAPE), large.expand(numbers, SHAPE).expand(SHAPE)
    )


@pytest.mark.parametrize(
    ("outer", "inner"),
    [("group32", "group64"), ("group32", "tensor"), ("flat64", "group32"), ("group48", "group32"),
     ("channel0", "channel1"), ("group32@0", "group32")],
)  # fmt: skip
def test_others(outer: str, inner: str) -> None:
    assert not nested(read_block(outer), read_block(inner), SHAPE)


def test_a_dimension_that_is_not_there() -> None:
    assert not nested(read_block("tensor"), read_block("tile2x2"), (8,))
