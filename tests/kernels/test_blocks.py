# SPDX-License-Identifier: BSD-3-Clause
"""Merging dimensions: the same blocks, and the same order of their scales."""

from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blockscale.core.block import WHOLE, Block, divided
from blockscale.kernels.blocks import merged


def block_of_each(shape: tuple[int, ...], sizes: tuple[int, ...]) -> torch.Tensor:
    """The index of each element's scale in row-major order, flat."""
    counts = divided(shape, sizes)
    block = Block("any", tuple(enumerate(sizes)))
    index = torch.arange(prod(counts)).reshape(counts)
    return block.expand(index, shape).expand(shape).reshape(-1)


DIMENSION = st.integers(1, 7).flatmap(
    lambda n: st.tuples(st.just(n), st.integers(0, 8) | st.sampled_from([1, WHOLE, n]))
)


@given(st.lists(DIMENSION, max_size=6))
@settings(max_examples=200, deadline=None)
def test_the_same_elements_share_a_scale(dims: list[tuple[int, int]]) -> None:
    shape, sizes = tuple(n for n, _ in dims), tuple(size for _, size in dims)
    fewer, fewer_sizes = merged(shape, sizes)
    assert prod(fewer) == prod(shape) and 1 not in fewer
    assert all(1 <= size <= n for n, size in zip(fewer, fewer_sizes, strict=True))
    assert torch.equal(block_of_each(fewer, fewer_sizes), block_of_each(shape, sizes))
    assert merged(fewer, fewer_sizes) == (fewer, fewer_sizes)


@pytest.mark.parametrize(
    ("shape", "sizes", "expected"),
    [
        ((), (), ((), ())),
        ((1, 1), (1, WHOLE), ((), ())),
        ((4, 64), (1, 32), ((256,), (32,))),
        ((4, 60), (1, 32), ((4, 60), (1, 32))),
        ((8, 6, 3, 3), (1, 2, 3, 3), ((432,), (18,))),
        ((8, 5, 3, 3), (1, 2, 3, 3), ((8, 45), (1, 18))),
        ((2, 3, 4), (WHOLE, WHOLE, WHOLE), ((24,), (24,))),
        ((2, 3, 4), (WHOLE, 1, WHOLE), ((2, 12), (2, 4))),
        ((64, 64, 64), (4, 8, 16), ((64, 64, 64), (4, 8, 16))),
        ((4, 1, 8, 1), (2, 5, 4, 7), ((4, 8), (2, 4))),
        ((3, 4, 5), (100, 100, 2), ((12, 5), (12, 2))),
        ((2, 0, 3), (1, 2, 3), ((2, 0, 3), (1, 2, 3))),
    ],
)
def test_by_hand(shape, sizes, expected) -> None:
    assert merged(shape, sizes) == expected


def test_refuses_another_number_of_sizes() -> None:
    with pytest.raises(ValueError, match="no block size for each of 2 dimensions"):
        merged((2, 3), (1,))
