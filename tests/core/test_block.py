# SPDX-License-Identifier: BSD-3-Clause
"""Which elements share a scale, against the index arithmetic of docs/numerics.md, section 1.2."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blockscale.core.block import LARGEST, Blocks, read_block
from tests.support.exact import block_of, layout, mean_magnitude
from tests.support.strategies import ODD, SHAPES, blocks

QUICK = settings(max_examples=300, derandomize=True, deadline=None)


@st.composite
def placed(draw) -> tuple[str, tuple[int, ...]]:
    shape = draw(SHAPES)
    return draw(blocks(len(shape))), shape


@pytest.mark.slow
@QUICK
@given(placed())
def test_shape_and_expand(case) -> None:
    """Every scale numbered, each element must see the number of its own block."""
    name, shape = case
    block, counts = read_block(name), layout(name, shape)[1]
    assert block.scale_shape(shape) == counts
    numbered = torch.arange(math.prod(counts)).reshape(counts)
    seen = block.expand(numbered, shape).broadcast_to(shape)
    assert seen.flatten().tolist() == block_of(name, shape)


@pytest.mark.slow
@QUICK
@given(st.data(), placed())
def test_reductions(data, case) -> None:
    """Partial blocks count only the elements that exist; non-finite ones are not in the range."""
    name, shape = case
    number = st.one_of(st.integers(-6, 6).map(float), ODD, st.sampled_from([math.inf, math.nan]))
    count = math.prod(shape)
    values = data.draw(st.lists(number, min_size=count, max_size=count))
    reduced = Blocks(torch.tensor(values, dtype=torch.float32).reshape(shape), read_block(name))
    members = [[] for _ in range(math.prod(layout(name, shape)[1]))]
    for value, owner in zip(torch.tensor(values).tolist(), block_of(name, shape), strict=True):
        members[owner].append(value)
    finite = [[v for v in block if math.isfinite(v)] for block in members]
    low, high = reduced.range()
    assert low.shape == high.shape == layout(name, shape)[1]
    assert low.flatten().tolist() == [min([0.0, *block]) for block in finite]
    assert high.flatten().tolist() == [max([0.0, *block]) for block in finite]
    odd = [any(not math.isfinite(v) for v in block) for block in members]
    assert reduced.poisoned().flatten().tolist() == odd
    mean = reduced.mean_magnitude()
    assert mean.flatten().tolist() == [mean_magnitude(block, twn=False) for block in members]


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("tensor", (), ()),
        ("tensor", (3, 0), (1, 1)),  # a whole dimension of size 0 has one scale
        ("channel0", (4, 6), (4, 1)),
        ("channel-1", (4, 6, 5), (1, 1, 5)),
        ("channel0", (0, 6), (0, 1)),
        ("token", (4, 6), (4, 1)),
        ("token", (4, 0), (4, 1)),
        ("token", (2, 0, 5), (2, 0, 1)),
        ("group32", (4, 65), (4, 3)),
        ("group32", (4, 0), (4, 0)),
        ("group4@0", (9, 2), (3, 2)),
        ("group4@-2", (9, 2), (3, 2)),
        ("tile128x128", (3, 576, 130), (3, 5, 2)),  # 576 // 5 is not 128
        ("tile2x3", (2, 3), (1, 1)),
    ],
)
def test_scale_shape_by_hand(name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert read_block(name).scale_shape(shape) == expected


@pytest.mark.parametrize(
    ("spelled", "canonical"),
    [
        ("tensor", "tensor"),
        ("token", "token"),
        ("channel-1", "channel-1"),
        ("channel01", "channel1"),
        ("channel-0", "channel0"),
        ("group32", "group32"),
        ("group32@-1", "group32"),
        ("group32@1", "group32@1"),
        ("group32@-2", "group32@-2"),
        ("tile16x4", "tile16x4"),
    ],
)
def test_one_spelling(spelled: str, canonical: str) -> None:
    assert str(read_block(spelled)) == canonical
    assert read_block(canonical) == read_block(spelled)


@pytest.mark.parametrize(
    ("name", "shape", "dimension"),
    [
        ("token", (), -1),
        ("group4", (), -1),
        ("channel0", (), 0),
        ("channel2", (3, 4), 2),
        ("channel-3", (3, 4), -3),
        ("group4@2", (3, 4), 2),
        ("tile2x2", (5,), -2),
    ],
)
def test_a_dimension_that_is_not_there(name: str, shape: tuple[int, ...], dimension: int) -> None:
    found = f"block '{name}' needs dimension {dimension}, but the tensor has {len(shape)}"
    for ask in (read_block(name).scale_shape, lambda s: Blocks(torch.zeros(s), read_block(name))):
        with pytest.raises(ValueError, match=f"^{found}: use a block that fits, such as 'tensor'$"):
            ask(shape)


UNKNOWN = ["", "group", "group0", "group-4", "group4@", "tile4", "tile0x4", "tile4x0", "tile4x"]
UNKNOWN += ["channel", "tensor0", "token1", "Group32", "group32 ", "group3.5", "row"]


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_block(name: str) -> None:
    with pytest.raises(ValueError, match=r"^unknown block ") as refused:
        read_block(name)
    message = str(refused.value)
    assert repr(name) in message
    for known in ("tensor", "channelA", "token", "groupN", "groupN@A", "tileRxC", "at least 1"):
        assert known in message


def test_the_mean_counts_only_what_exists() -> None:
    # a padded zero, or one counted, would give 2 or 3
    x = torch.tensor([2.0, 4.0, math.nan, -6.0, 6.0])
    means = Blocks(x, read_block("group4")).mean_magnitude()
    assert means.tolist() == [4.0, 6.0]


def test_a_mean_drops_what_is_below_30_bits() -> None:
    # docs/numerics.md, 3.2: t = floor(|x| * 2^30), so 255 times three quarters of a bit are nothing
    x = torch.tensor([1.0, *[-0.75 * 2.0**-30] * 255])
    assert Blocks(x, read_block("tensor")).mean_magnitude().tolist() == [2.0**-8]


def test_the_mean_above_a_threshold() -> None:
    x = torch.tensor([[1.0, -2.0, 3.0, 4.0], [5.0, 5.0, 5.0, 5.0]])
    means = Blocks(x, read_block("token")).mean_magnitude(above=torch.tensor([[2.0], [5.0]]))
    assert means.tolist() == [[3.5], [0.0]]


def test_the_mean_does_not_depend_on_order() -> None:
    x = torch.randn(5000) * torch.randn(5000).exp2()
    mean = Blocks(x, read_block("tensor")).mean_magnitude()
    for _ in range(5):
        shuffled = Blocks(x[torch.randperm(5000)], read_block("tensor")).mean_magnitude()
        assert torch.equal(shuffled, mean)
    assert mean.item() == pytest.approx(x.abs().double().mean().item(), rel=2**-22)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("group1073741825", "a block of 1073741825 elements is too large: at most 1073741824"),
        ("group99999999999999999999", "too large"),
        ("tile1x3000000000", "too large"),
        ("flat1073741825@0", "too large"),
        ("block2x1x1073741825", "too large"),
        ("group" + "9" * 5000, "too large"),
        ("block" + "2x" * 64 + "2", "has at most 64"),
        ("channel64", "no dimension 64: a tensor has at most 64"),
        ("group2@-65", "no dimension -65"),
        ("channel99999999999999999999", "no dimension 9999"),
    ],
)
def test_limits(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        read_block(name)
    assert len(str(caught.value)) < 200


def test_the_largest() -> None:
    assert read_block("group1073741824").sizes == ((-1, LARGEST),)
    assert read_block("channel63").sizes == ((63, 1),)


# What the scales of blocks are chosen from, for every kind of block, by picking elements.


@st.composite
def cases(draw) -> tuple[str, tuple[int, ...], list[float]]:
    shape = draw(SHAPES)
    count = math.prod(shape)
    value = st.sampled_from([0.0, -0.0, 1.0, -2.5, 3.0, math.nan, math.inf, -math.inf])
    return draw(blocks(len(shape))), shape, draw(st.lists(value, min_size=count, max_size=count))


@pytest.mark.slow
@settings(deadline=None, max_examples=200, derandomize=True)
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
    with pytest.raises(ValueError, match="needs a tensor of at least one dimension"):
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


@pytest.mark.parametrize(
    ("block", "shape"),
    [("group5", (3, 13)), ("tile2x3", (5, 7)), ("tensor", (4, 3)), ("tensor", ()),
     ("channel0", (3, 4)), ("flat6", (4, 5)), ("token", (2, 1)), ("group4", (2, 0))],
)  # fmt: skip
def test_sums_by_halves(block: str, shape: tuple[int, ...]) -> None:
    x = torch.randint(-9, 9, shape, generator=torch.Generator().manual_seed(0)).double()
    found = Blocks(x, each := read_block(block))
    expected = torch.zeros(each.scale_shape(shape), dtype=torch.float64)
    places = torch.arange(expected.numel()).reshape(expected.shape)
    owners = each.expand(places, shape).expand(shape)
    expected.view(-1).index_add_(0, owners.reshape(-1), x.reshape(-1))
    assert torch.equal(found.sum().double(), expected)


def test_the_order_of_a_sum() -> None:
    """Halves: (a + c) + (b + d)."""
    x = torch.tensor([1.0, 2.0**60, 1.0, -(2.0**60)], dtype=torch.float64)
    assert Blocks(x, read_block("tensor")).sum().item() == 2.0
