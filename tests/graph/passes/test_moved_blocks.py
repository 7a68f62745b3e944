# SPDX-License-Identifier: BSD-3-Clause
"""Blocks after a change of shape, against what dequantizing shows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blockscale.core.block import WHOLE, read_block
from blockscale.graph.passes.moved_blocks import block_of, counts, groups, through_view


@pytest.mark.parametrize(
    ("sizes", "old", "new", "expected"),
    [
        ((1, 1, 32), (2, 5, 384), (2, 5, 12, 32), (1, 1, 1, 32)),
        ((1, 1, WHOLE), (2, 5, 384), (2, 5, 12, 32), (1, 1, WHOLE, WHOLE)),
        ((1, 1, 64), (2, 5, 384), (2, 5, 12, 32), (1, 1, 2, 32)),
        ((1, 1, 48), (2, 5, 384), (2, 5, 12, 32), None),
        ((1, 1, 16), (2, 5, 384), (10, 384), (1, 16)),
        ((1, 1, 1, 32), (2, 5, 12, 32), (2, 5, 384), (1, 1, 32)),
        ((2, 3), (4, 6), (24,), None),
        ((2, WHOLE), (4, 6), (24,), (12,)),
        ((1, WHOLE), (6, 8), (8, 6), None),
        ((1, WHOLE), (6, 8), (1, 6, 8, 1), (1, 1, WHOLE, 1)),
        ((1, 5), (6, 8), (2, 3, 8), (1, 1, 5)),
        ((1, 5), (6, 8), (48,), None),
    ],
)
def test_views(sizes: tuple, old: tuple, new: tuple, expected: tuple | None) -> None:
    assert through_view(sizes, old, new, 1) == expected


shapes = st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(shapes, st.data())
def test_elements_of_a_block_stay_together(old: list[int], data: st.DataObject) -> None:
    """Oracle: the block's number of each element, viewed, is that of the new block."""
    sizes = [data.draw(st.sampled_from([1, WHOLE, 2, 3])) for _ in old]
    places = list(old)
    if data.draw(st.booleans()):  # split or merge at random
        total = torch.Size(old).numel()
        first = data.draw(st.sampled_from([n for n in range(1, total + 1) if total % n == 0]))
        second = data.draw(
            st.sampled_from([n for n in range(1, total // first + 1) if total // first % n == 0])
        )
        places = [first, second, total // first // second]
    after = through_view(sizes, old, places, 1)
    if after is None:
        return

    def numbered(sizes, shape):
        blocks = counts(sizes, shape)
        scale = torch.arange(torch.Size(blocks).numel()).reshape(blocks)
        block = block_of(sizes, read_block("tensor"))
        return scale, block.expand(scale, shape).expand(tuple(shape))

    scale, old_numbers = numbered(sizes, old)
    after_scale, new_numbers = numbered(after, places)
    assert scale.numel() == after_scale.numel()
    assert torch.equal(old_numbers.reshape(places), new_numbers)


def test_groups_of_dimensions() -> None:
    assert groups((2, 12), (2, 3, 4)) == [([0], [0]), ([1], [1, 2])]
    assert groups((2, 3, 4), (6, 4)) == [([0, 1], [0]), ([2], [1])]
    assert groups((6,), (1, 6)) == [([], [0]), ([0], [1])]
    assert groups((6, 8), (8, 6)) == [([0, 1], [0, 1])]
    assert groups((4,), (5,)) is None


@pytest.mark.parametrize(
    ("sizes", "like", "name"),
    [
        ((1, 1, WHOLE), "token", "token"),
        ((WHOLE, WHOLE, 1), "channel0", "channel-1"),
        ((WHOLE, 1, WHOLE), "token", "channel1"),
        ((1, 32, 1), "group32", "group32@-2"),
        ((1, 1, 32), "group32@-2", "group32"),
        ((WHOLE, WHOLE), "tensor", "tensor"),
        ((1, 1, 2, 32), "group64", "tile2x32"),
        ((1, WHOLE, WHOLE), "token", "channel0"),
        ((1, 1, WHOLE, WHOLE), "token", "block*x*"),
    ],
)
def test_names(sizes: tuple, like: str, name: str) -> None:
    block = block_of(sizes, read_block(like))
    assert str(block) == name and block.sizes_for(len(sizes)) == sizes
