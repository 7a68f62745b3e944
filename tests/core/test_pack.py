# SPDX-License-Identifier: BSD-3-Clause
"""Packing against a bit stream written bit by bit (docs/numerics.md, section 6)."""

import itertools
import math
from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import blockscale as bs
from blockscale.core.elements import read_element
from blockscale.core.pack import (
    LAYOUTS,
    check_layout,
    from_stored,
    grouped_layout,
    inputs_first,
    of_convolution,
    pack,
    packed_dtype,
    packed_size,
    stack_layout,
    stored_shape,
    to_stored,
    unpack,
)
from tests.support.core_pack import NAMES as CORE_PACK_NAMES
from tests.support.core_pack import SHAPES, random_codes
from tests.support.exact import pack_row

CORE_PACK_NAMES += ["binary", "ternary", "e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "e3m0", "e3m3"]
CORE_PACK_NAMES += [f"log{b}" for b in range(2, 9)]
NATIVE = {"int8": torch.int8, "uint8": torch.uint8, "int16": torch.int16, "uint16": torch.uint16}


def rows(codes: Tensor) -> list[list[int]]:
    """Rank 0 is one row of one code."""
    codes = codes.reshape(1) if codes.ndim == 0 else codes
    return codes.reshape(math.prod(codes.shape[:-1]), codes.shape[-1]).tolist()


@pytest.mark.some(4)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", CORE_PACK_NAMES)
def test_the_bit_stream(name: str, shape: tuple[int, ...]) -> None:
    element, codes = read_element(name), random_codes(name, shape)
    packed = pack(codes, element)
    last = shape[-1] if shape else 1
    assert packed.dtype == packed_dtype(element) == NATIVE.get(name, torch.uint8)
    assert packed.shape == (*shape[:-1], packed_size(element, last))
    if name in NATIVE:
        assert rows(packed) == rows(codes)
    else:
        bit = (lambda c: c > 0) if name == "binary" else (lambda c: c)
        expected = [pack_row([bit(c) for c in row], element.bits) for row in rows(codes)]
        assert rows(packed) == expected
    back = unpack(packed, element, shape)
    assert back.dtype == codes.dtype
    assert back.shape == codes.shape
    assert torch.equal(back, codes)


@pytest.mark.parametrize(
    ("name", "codes", "expected"),
    [
        ("uint4", [1, 2, 3], [0x21, 0x03]),  # the even index in the low nibble
        ("int4", [-1, 1, -8, 7], [0x1F, 0x78]),
        ("e3m2", [1, 2, 3, 4], [0x81, 0x30, 0x10]),  # four codes in three bytes
        ("int2", [1, -1, 0, -2, 1], [0x8D, 0x01]),
        ("ternary", [1, 0, -1, 1], [0x71]),
        ("binary", [1, -1, -1, 1, 1, -1, 1, 1, 1], [0xD9, 0x01]),
        ("int12", [-1, 0x123], [0xFF, 0x3F, 0x12]),
        ("e4m3", [0x80, 0x7F], [0x80, 0x7F]),
        ("int8", [-128, 127], [-128, 127]),
        ("uint16", [65535, 0], [65535, 0]),
    ],
)
def test_by_hand(name: str, codes: list[int], expected: list[int]) -> None:
    element = read_element(name)
    assert pack(torch.tensor(codes).to(element.code_dtype), element).tolist() == expected


@pytest.mark.parametrize("name", ["int4", "e3m2", "uint16", "int8"])
def test_strided_codes(name: str) -> None:
    element, codes = read_element(name), random_codes(name, (5, 6))
    transposed = codes.t()
    assert torch.equal(pack(transposed, element), pack(transposed.contiguous(), element))
    assert torch.equal(unpack(pack(transposed, element), element, (6, 5)), transposed)


@pytest.mark.parametrize("bits", range(1, 17))
def test_sizes(bits: int) -> None:
    element = read_element(f"uint{bits}")
    for count in range(20):
        expected = count if bits in (8, 16) else math.ceil(count * bits / 8)
        assert packed_size(element, count) == expected


# Layouts: there and back for every shape, and blocks along what a layer sums over.

RANKS = {"plain": (0, 4), "transposed": (2, 2), "channels_last": (3, 5)}
RANKS |= {"transposed_channels_last": (3, 5), "transposed_channels_last:3": (3, 5)}


@st.composite
def cases(draw) -> tuple[str, tuple[int, ...]]:
    layout = draw(st.sampled_from(sorted(RANKS)))
    least, most = RANKS[layout]
    first, *rest = draw(st.lists(st.integers(0, 4), min_size=least, max_size=most)) or (1,)
    grouped = layout.endswith(":3")
    return layout, (first * 3, *rest) if grouped else (first, *rest)[: max(most, 1)]


@pytest.mark.slow
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


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("kernel", [(3,), (2, 3), (2, 1, 3)])
def test_rows_of_a_transposed_convolution_are_its_outputs(kernel, groups: int) -> None:
    """torch's own: an input of a single one at a place gives the weights that belong to it."""
    run = {1: torch.conv_transpose1d, 2: torch.conv_transpose2d, 3: torch.conv_transpose3d}
    inputs, outputs = 8, 12
    weight = torch.randn(inputs, outputs // groups, *kernel)
    stored = to_stored(weight, grouped_layout(groups))
    assert stored.shape == (outputs, torch.Size(kernel).numel() * inputs // groups)
    rows = stored.reshape(outputs, -1, inputs // groups)
    for i in range(inputs):
        one = torch.zeros(1, inputs, *[1] * len(kernel))
        one[0, i] = 1
        y = run[len(kernel)](one, weight, groups=groups)[0].flatten(1)  # [outputs, places]
        group, own = divmod(i, inputs // groups)
        seen = range(group * outputs // groups, (group + 1) * outputs // groups)
        for o in range(outputs):
            expected = rows[o, :, own] if o in seen else torch.zeros(y.shape[1])
            assert torch.equal(y[o], expected)


def test_which_layouts_there_are() -> None:
    for layout in (*LAYOUTS, "transposed_channels_last:2", "transposed_channels_last:64"):
        check_layout(layout)
    assert grouped_layout(1) == "transposed_channels_last"
    for layout in ("", "Plain", "transposed:2", "channels_last:2", *(f"{LAYOUTS[3]}:{text}" for text
                   in ("", "1", "0", "-2", "02", "2.0", "2:2", "x", " 2", "²"))):  # fmt: skip
        with pytest.raises(
            ValueError, match=r"unknown layout .* choose from plain, transposed, channels"
        ):
            check_layout(layout)
    assert [of_convolution(layout) for layout in LAYOUTS] == [False, False, True, True]
    assert [inputs_first(layout) for layout in LAYOUTS] == [False, True, False, True]
    with pytest.raises(ValueError, match="6 inputs cannot be divided into 4 equal groups"):
        stored_shape((6, 2, 3), grouped_layout(4))


def test_matrices_one_below_another_are_a_stack_of_turned_ones() -> None:
    w, layout = torch.randn(4 * 6, 5), stack_layout(4)
    stored = to_stored(w, layout)
    assert tuple(stored.shape) == stored_shape(w.shape, layout) == (4, 5, 6)
    for e in range(4):
        assert torch.equal(stored[e], w[6 * e : 6 * e + 6].T)
    assert torch.equal(from_stored(stored, layout, w.shape), w)
    check_layout(layout)
    with pytest.raises(ValueError, match="is not 5 matrices one below another"):
        stored_shape(w.shape, stack_layout(5))
    for wrong in ("transposed_stack", "transposed_stack:0", "transposed_stack:x", "plain:2"):
        with pytest.raises(ValueError, match="unknown layout"):
            check_layout(wrong)
