# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions in groups and transposed ones, in integer instructions: the reference's integers."""

from typing import Any

import pytest
import torch

from blockscale.kernels.cpu.integer.products import conv
from blockscale.kernels.registry import unavailable
from blockscale.ops.integer import INTEGER_OPS
from tests.kernels.cpu.integer.equal import Floats, equal
from tests.support.integer_oracle import INT8, INT16, LIMITS, UINT8, shifts, whole

pytestmark = pytest.mark.skipif(unavailable("cpu") is not None, reason=str(unavailable("cpu")))
CONV = INTEGER_OPS["integer_conv"]


def given(
    x: tuple[int, ...], shape: list[int], groups: int, transposed: bool, *settings: list[int],
    wide: bool = False, fmt: str = INT8, zero: int = 3,
) -> tuple[Any, ...]:  # fmt: skip
    """Arguments of a convolution of random codes, with a bias and a shift for each output."""
    dtype = torch.int16 if wide else torch.int8
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    n, inner = (shape[1] * groups, shape[0] // groups) if transposed else shape[:2]
    k = torch.Size(shape[2:]).numel() * inner
    weight = whole(least, most, n, k, dtype=dtype)
    ends = (*LIMITS[fmt], fmt) if fmt else (0, 0, "")
    return (
        whole(least, most, *x, dtype=dtype), weight, whole(-999, 999, n), shape, *settings[:3],
        groups, transposed, settings[3] if transposed else [], zero,
        2**40 if wide else 2**31 - 1, whole(5, 20, n) if fmt else shifts(0), 0, *ends,
    )  # fmt: skip


def _limits(dtype: torch.dtype) -> tuple[int, int]:
    return torch.iinfo(dtype).min, torch.iinfo(dtype).max


@pytest.mark.some(4)
@pytest.mark.parametrize("groups", [2, 3, 32, 33, 40])
@pytest.mark.parametrize("outputs", [1, 2, 33])
@pytest.mark.parametrize("channels", [1, 3])
def test_groups(groups, outputs, channels):
    """Of fewer and of more outputs than a panel has, also where the last panel has fewer groups."""
    sizes = ([2, 1], [1, 0], [1, 2])
    x, shape = (2, 5, 4, groups * channels), [groups * outputs, channels, 3, 2]
    equal("integer_conv", *given(x, shape, groups, False, *sizes))


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 3, 4, 5, 9])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_channels_of_their_own(isa, width, stride):
    """Four codes of a line share a lane, unless they lie apart; of lines shorter than the kernel,
    lanes that are no output, and zero points at both ends."""
    del isa
    for dtype, zero in ((torch.uint8, 0), (torch.uint8, 255), (torch.int8, -128), (torch.int8, 5)):
        for each, apart in ((1, 1), (2, 1), (1, 2)):
            settings = ([1, stride], [1, width // 2], [1, apart])
            args = [*given((2, 3, 21, 35), [35 * each, 1, 2, width], 35, False, *settings)]
            args[0] = whole(*_limits(dtype), 2, 3, 21, 35, dtype=dtype)
            args[10] = zero
            equal("integer_conv", *args)


@pytest.mark.some(4)
@pytest.mark.parametrize("fmt", [INT8, UINT8, INT16, ""])
@pytest.mark.parametrize("channels", [1, 3, 31])
def test_few_channels(isa, fmt, channels):
    """Without patches, up to the products that float32 sums exactly; the largest sums of those."""
    del isa
    for kernel in ((2, 3), (8, 32 // channels)):
        x, shape = (2, 9, 40, channels), [20, channels, *kernel]
        args = [*given(x, shape, 1, False, [1, 2], [1, 1], [1, 1], fmt=fmt, zero=-128)]
        equal("integer_conv", *args)
        args[0], args[1] = torch.full(x, 127, dtype=torch.int8), torch.full_like(args[1], -128)
        equal("integer_conv", *args)


def test_a_kernel_of_more_cells_than_float32_sums(isa):
    del isa
    for cells in (256, 300):
        args = [*given((1, 310, 36), [36, 1, cells], 36, False, [1], [3], [1])]
        args[0], args[1] = torch.full_like(args[0], -128), torch.full_like(args[1], -127)
        args[10] = 127
        equal("integer_conv", *args)


@pytest.mark.parametrize("kernel", [1, 2, 3, 4])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2, 3])
def test_transposed(kernel, stride, dilation):
    """Also where some results see no cell of the kernel (the stride is longer, or a multiple of the
    dilation), and where padding cuts x off."""
    for padding, more in ((0, 0), (2, 0), (1, 1)):
        sizes = ([stride], [padding], [dilation], [more])
        if dilation * (kernel - 1) + 4 * stride - 2 * padding + more + 1 > 0:
            equal("integer_conv", *given((2, 5, 3), [3, 4, kernel], 1, True, *sizes))


@pytest.mark.parametrize("groups", [1, 2, 36])
def test_transposed_of_several_dimensions(groups):
    sizes = ([2, 1, 3], [1, 0, 0], [1, 2, 1], [0, 0, 2])
    x, shape = (1, 2, 3, 2, 2 * groups), [2 * groups, 2, 3, 2, 2]
    for fmt in (INT8, UINT8, INT16, ""):
        equal("integer_conv", *given(x, shape, groups, True, *sizes, fmt=fmt))


@pytest.mark.parametrize("transposed", [False, True])
def test_sixteen_bits_in_groups(transposed):
    sizes = ([2, 1], [1, 1], [1, 1], [1, 0])
    args = given((2, 4, 5, 36), [36, 1, 3, 5], 36, False, *sizes, wide=True)  # in halves, in lanes
    equal("integer_conv", *args)
    shape = [6, 2, 3, 2] if transposed else [6, 3, 3, 2]
    args = given((2, 4, 5, 6), shape, 3 if transposed else 2, transposed, *sizes, wide=True)
    equal("integer_conv", *args)


@pytest.mark.parametrize("transposed", [False, True])
def test_no_floats(transposed):
    args = given((1, 4, 4, 8), [8, 1, 3, 3], 8, transposed, [2, 2], [1, 1], [1, 1], [0, 0])
    CONV(*args)  # which makes the weight ready
    with Floats():
        conv(*args)


def test_changes_of_a_weight():
    """Pieces are made again; and what is kept does not hold the weight."""
    args = given((1, 4, 4, 4), [4, 1, 3, 3], 4, False, [1, 1], [1, 1], [1, 1], zero=0)
    before = CONV(*args)
    args[1].zero_()
    after = CONV(*args)
    assert not torch.equal(before, after)
    equal("integer_conv", *args)
    args[1].data.fill_(5)  # which torch does not count
    equal("integer_conv", *args)


def test_a_result_of_no_size_is_left_to_the_reference():
    args = given((1, 2, 2), [2, 2, 3], 1, False, [1], [0], [1])
    with pytest.raises(RuntimeError, match="Kernel size"):
        CONV(*args)
