# SPDX-License-Identifier: BSD-3-Clause
"""How a tensor is cut into blocks, against a loop over its elements."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blockscale.compat.torchao.split import Split, split_blocks


def test_the_example_of_the_docstring() -> None:
    assert split_blocks((4, 64), (1, 32)) == Split((4, 2, 32), (2,), (4, 2, 1), (4, 2))
    assert split_blocks((4, 64), (-1, 64)) == Split((4, 64), (0, 1), (1, 1), (1, 1))
    assert split_blocks((), ()) == Split((), (), (), ())


@st.composite
def problems(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A shape, and blocks that divide it."""
    pairs = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=4))
    shape = tuple(count * size for count, size in pairs)
    block = tuple(draw(st.sampled_from([size, -1])) for _, size in pairs)
    return shape, block


@pytest.mark.slow
@settings(max_examples=80)
@given(problems())
def test_ranges_and_what_is_spread(problem) -> None:
    shape, block = problem
    sizes = [n if size == -1 else size for n, size in zip(shape, block, strict=True)]
    counts = tuple(n // size for n, size in zip(shape, sizes, strict=True))
    split = split_blocks(shape, block)
    assert split.counts == counts
    x = torch.randn(shape)
    low, high = torch.full(counts, math.inf), torch.full(counts, -math.inf)
    owners = torch.empty(shape)
    numbers = torch.arange(math.prod(counts)).reshape(counts).float()
    for index in itertools.product(*map(range, shape)):
        of = tuple(i // size for i, size in zip(index, sizes, strict=True))
        low[of], high[of] = min(low[of], x[index]), max(high[of], x[index])
        owners[index] = numbers[of]
    if set(sizes) != {1}:  # torch reduces over everything there, as torchao does
        found = split.ranges(x, keepdim=True)
        assert torch.equal(found[0], low)
        assert torch.equal(found[1], high)
    for param in (numbers, numbers.squeeze()):
        spread = split.expand(param, "scale").expand(split.view).reshape(shape)
        assert torch.equal(spread, owners)


@pytest.mark.parametrize(
    ("shape", "block", "message"),
    [
        ((4, 64), (32,), r"has 1 entries, but the input has shape \(4, 64\)"),
        ((4, 64), (1, 24), r"24 does not divide dimension 1 of \(4, 64\): pad it to 72"),
        ((4, 64), (0, 64), "0 for dimension 0: use a positive size, or -1"),
        ((4, 64), (-2, 64), "-2 for dimension 0"),
        ((4, 64), (8, 64), "8 does not divide dimension 0"),
    ],
)
def test_blocks_that_do_not_fit(shape, block, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split_blocks(shape, block)


def test_numbers_that_are_not_one_a_block() -> None:
    split = split_blocks((4, 64), (1, 32))
    for shape in ((2, 4), (4,), (8,), (4, 1)):
        with pytest.raises(ValueError, match=r"scale has shape .* there are \(4, 2\) blocks"):
            split.expand(torch.ones(shape), "scale")
