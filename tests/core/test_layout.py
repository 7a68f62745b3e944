"""Layouts: there and back for every shape, and blocks along what a layer sums over."""

import itertools
from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import blockscale as bs
from blockscale.core.layout import LAYOUTS, from_stored, stored_shape, to_stored

RANKS = {"plain": (0, 4), "transposed": (2, 2), "channels_last": (3, 5)}


@st.composite
def cases(draw) -> tuple[str, tuple[int, ...]]:
    layout = draw(st.sampled_from(LAYOUTS))
    least, most = RANKS[layout]
    return layout, tuple(draw(st.lists(st.integers(0, 4), min_size=least, max_size=most)))


@settings(max_examples=300)
@given(cases(), st.booleans())
def test_there_and_back(case, reversed_strides: bool) -> None:
    layout, shape = case
    weight = torch.arange(prod(shape), dtype=torch.float32).reshape(shape)
    if reversed_strides:
        order = tuple(reversed(range(len(shape))))
        weight = weight.permute(order).contiguous().permute(order)
    stored = to_stored(weight, layout)
    assert tuple(stored.shape) == stored_shape(shape, layout)
    back = from_stored(stored, layout, shape)
    assert back.shape == weight.shape
    assert torch.equal(back, weight)


def test_transposed_is_the_layout_of_linear() -> None:
    weight = torch.randn(3, 5)  # [inputs, outputs]
    x = torch.randn(2, 3)
    expected = torch.nn.functional.linear(x, weight.t())
    assert torch.equal(torch.nn.functional.linear(x, to_stored(weight, "transposed")), expected)


@pytest.mark.parametrize("kernel", [(3,), (2, 3), (2, 1, 3)])
def test_channels_last_lists_the_channels_of_one_position_after_another(kernel) -> None:
    outputs, inputs = 2, 4
    weight = torch.randn(outputs, inputs, *kernel)
    stored = to_stored(weight, "channels_last")
    positions = list(itertools.product(*map(range, kernel)))
    for o in range(outputs):
        expected = [weight[(o, i, *p)].item() for p in positions for i in range(inputs)]
        assert stored[o].tolist() == expected


def test_a_block_holds_channels_of_one_kernel_position() -> None:
    """TOSA 1.1's block-scaled conv2d; with inputs a multiple of the block, as the module says."""
    weight = torch.randn(3, 8, 2, 2)
    scale, _ = bs.choose_qparams(to_stored(weight, "channels_last"), "int8:group4:fp32")
    assert scale.shape == (3, 2 * 2 * 2)
    amax = weight.reshape(3, 2, 4, 2, 2).abs().amax(2)  # [o, group, y, x]
    assert torch.equal(scale, amax.permute(0, 2, 3, 1).reshape(3, 8) / torch.tensor(127.0))
    rows, _ = bs.choose_qparams(to_stored(weight, "channels_last"), "int8:channel0:fp32")
    assert torch.equal(rows[:, 0], weight.abs().amax((1, 2, 3)) / torch.tensor(127.0))
