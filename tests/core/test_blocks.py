# SPDX-License-Identifier: BSD-3-Clause
"""What the scales of blocks are chosen from, for every kind of block, by picking elements."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blockscale.core.block import read_block
from blockscale.core.blocks import Blocks
from tests.support.exact import block_of, layout
from tests.support.strategies import SHAPES, blocks


@st.composite
def cases(draw) -> tuple[str, tuple[int, ...], list[float]]:
    shape = draw(SHAPES)
    count = math.prod(shape)
    value = st.sampled_from([0.0, -0.0, 1.0, -2.5, 3.0, math.nan, math.inf, -math.inf])
    return draw(blocks(len(shape))), shape, draw(st.lists(value, min_size=count, max_size=count))


@settings(deadline=None, max_examples=100, derandomize=True)
@given(cases())
def test_ranges_of_every_block(case) -> None:
    name, shape, values = case
    cut = Blocks(torch.tensor(values).reshape(shape), read_block(name))
    counts = layout(name, shape)[1]
    assert cut.shape == counts
    members: list[list[float]] = [[] for _ in range(math.prod(counts))]
    for value, owner in zip(values, block_of(name, shape), strict=True):
        members[owner].append(value)
    finite = [[v for v in block if math.isfinite(v)] for block in members]
    low, high = (part.flatten().tolist() for part in cut.range())
    assert low == [min([0.0, *b]) for b in finite]
    assert high == [max([0.0, *b]) for b in finite]
    low, high = (part.flatten().tolist() for part in cut.range(bare=True))
    assert low == [min(b, default=0.0) for b in finite]
    assert high == [max(b, default=0.0) for b in finite]
    odd = [len(b) < len(m) for b, m in zip(finite, members, strict=True)]
    assert cut.poisoned().flatten().tolist() == odd


def test_blocks_far_apart_must_divide_the_tensor() -> None:
    with pytest.raises(ValueError, match="divides the tensor, but"):
        Blocks(torch.zeros(3, 5), read_block("flat4@0"))


def test_blocks_over_the_flattened_tensor_have_no_size_along_a_dimension() -> None:
    with pytest.raises(ValueError, match="run over the flattened tensor"):
        read_block("flat4").sizes_for(2)
    with pytest.raises(ValueError, match="needs a tensor with a dimension"):
        read_block("flat4").scale_shape(())


def test_means_count_what_is_there() -> None:
    cut = Blocks(torch.tensor([[1.0, -3.0, 5.0, math.nan, 7.0]]), read_block("group4"))
    assert cut.mean_magnitude().tolist() == [[3.0, 7.0]]


def test_blocks_far_apart() -> None:
    """HQQ's axis 0: block j of n has the elements j, j + n, j + 2 n, …"""
    x = torch.arange(12.0).reshape(3, 4)
    block = read_block("flat4@0")
    assert [part.tolist() for part in Blocks(x, block).range()] == [
        [[0.0, 0.0, 0.0]],
        [[9.0, 10.0, 11.0]],
    ]
    scale = torch.tensor([[1.0, 2.0, 3.0]])
    assert block.expand(scale, x.shape).tolist() == [[1, 2, 3, 1], [2, 3, 1, 2], [3, 1, 2, 3]]


def test_a_block_beyond_its_dimension_takes_no_memory() -> None:
    """It is cut to the dimension: padding to 2^30 elements a row would take 256 GB here."""
    x = torch.linspace(-1, 1, 64 * 5).reshape(64, 5)
    for name in ("tile1073741824x1073741824", "group1073741824", "flat1073741824"):
        low, high = Blocks(x, read_block(name)).range()
        whole = read_block({"g": "token", "t": "tensor", "f": "tensor"}[name[0]])
        expected = Blocks(x, whole).range()
        assert torch.equal(low, expected[0]) and torch.equal(high, expected[1])
    assert Blocks(x[:, :0], read_block("group1073741824")).range()[0].shape == (64, 0)
