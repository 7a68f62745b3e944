# SPDX-License-Identifier: BSD-3-Clause
"""Integer arithmetic under powers of two, against exact rationals and float64."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import blockscale as bs
from blockscale.graph.integer.arithmetic import (
    add_aligned,
    conv_int32,
    integer_bias,
    largest_sum,
    linear_int32,
    requantize_shift,
    sum_pool2d,
)
from blockscale.ops.integer.shifts import SHIFT_ROUNDINGS, shift_right

INT8 = bs.parse("int8:tensor:pow2/nearest")


def whole(low: int, high: int, *shape: int) -> Tensor:
    return torch.randint(low, high + 1, shape, dtype=torch.int32)


def rounded(x: Fraction, rounding: str) -> int:
    """The oracle: what each rounding says, in rationals."""
    floor, rest = math.floor(x), x - math.floor(x)
    half = Fraction(1, 2)
    return {
        "nearest_even": round(x),  # Python's, of a Fraction: half to even
        "nearest_away": math.floor(x + half) if x >= 0 else math.ceil(x - half),
        "half_up": math.floor(x + half),
        "toward_zero": math.trunc(x),
        "down": floor,
        "up": floor + (rest > 0),
    }[rounding]


def accumulators() -> list[int]:
    """Small ones, so that every shift up to 5 meets its ties, and the ends of int32."""
    ends = [2**31 - 1, -(2**31), 2**31 - 64, 2**30, -(2**30), 3 * 2**29, -3 * 2**29]
    return [*range(-70, 71), *ends, *(whole(-(2**31), 2**31 - 1, 40).tolist())]


@pytest.mark.parametrize("rounding", SHIFT_ROUNDINGS)
def test_shifts(rounding: str) -> None:
    """Every distance, also beyond the width of any integer: no shift is undefined."""
    values = accumulators()
    acc = torch.tensor(values, dtype=torch.int32)
    for shift in (0, 1, 2, 5, 15, 24, 30, 31, 32, 33, 34, 63, 64, 200, 2**30):
        found = shift_right(acc, torch.tensor(shift, dtype=torch.int32), rounding)
        scale = Fraction(1, 2 ** min(shift, 300))  # 2^-300 rounds as anything smaller does
        assert found.tolist() == [rounded(v * scale, rounding) for v in values]
    for shift in (-1, -7, -31):
        found = shift_right(acc, torch.tensor(shift, dtype=torch.int32), rounding)
        assert found.tolist() == [v << -shift for v in values]


def test_half_up_is_what_hardware_does() -> None:
    """(acc + half a step) >> shift, in 32-bit integers."""
    acc = whole(-(2**24), 2**24, 5000)
    for shift in (1, 4, 9):
        expected = (acc.numpy() + np.int32(1 << (shift - 1))) >> shift
        found = shift_right(acc, torch.tensor(shift, dtype=torch.int32), "half_up")
        assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("fmt", ["int8", "int8:tensor:pow2/nearest:full", "int4", "uint8", "int16"])
def test_left_shifts_saturate(fmt: str) -> None:
    """By 32 and more, too; and 0 stays 0."""
    form = bs.parse(fmt if ":" in fmt else f"{fmt}:tensor:pow2/nearest")
    low, high = (int(limit) for limit in form.element.limits(form.wide))
    acc = torch.tensor([1, -1, 0, 2**31 - 1, -(2**31)], dtype=torch.int32)
    for shift in (-31, -32, -33, -64, -(2**30)):
        codes = requantize_shift(acc, torch.tensor(shift, dtype=torch.int32), form)
        assert codes.dtype == form.element.code_dtype
        assert codes.tolist() == [high, low, 0, high, low]


@pytest.mark.parametrize("rounding", SHIFT_ROUNDINGS[:-1])
@pytest.mark.parametrize(
    "fmt",
    [
        "int8:tensor:pow2/nearest",
        "int5:tensor:pow2/nearest:full",
        "uint8:tensor:pow2/nearest:asym",
        "int8:tensor:e8m0:asym",
    ],
)
def test_codes_are_those_of_quantize(fmt: str, rounding: str) -> None:
    """Sums that float32 holds: the format's own quantization of acc * 2^-3 gives the same codes."""
    form = bs.parse(fmt if rounding == "nearest_even" else f"{fmt}:{rounding}")
    zero = 37 if form.asym and not form.element.signed else -11 if form.asym else 0
    point = torch.tensor([zero], dtype=torch.int32) if form.asym else None
    acc = torch.cat([whole(-(2**24), 2**24, 500), whole(-3000, 3000, 3000)])
    values = acc.float() * 2.0**-3
    for n in (-3, -1, 4, 12):  # the output's exponent: shifts to the right and to the left
        stored = torch.tensor([2.0**n])
        if form.scale.bits == 8:
            stored = torch.tensor([n + 127 + form.fraction_bits], dtype=torch.uint8)
        expected = bs.quantize(values, form, stored, point).codes
        found = requantize_shift(acc, torch.tensor(n + 3, dtype=torch.int32), form, zero)
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)


def test_a_shift_for_each_channel() -> None:
    acc = whole(-(2**20), 2**20, 3, 4, 5)
    shift = torch.tensor([[14], [-2], [0], [40]], dtype=torch.int32)
    found = requantize_shift(acc, shift, INT8)
    for channel in range(4):
        alone = requantize_shift(acc[:, channel], shift[channel], INT8)
        assert torch.equal(found[:, channel], alone)


def test_what_no_shift_gives() -> None:
    acc, shift = whole(-9, 9, 4), torch.tensor(1, dtype=torch.int32)
    with pytest.raises(ValueError, match="a shift gives integers, such as int8, not e4m3"):
        requantize_shift(acc, shift, bs.parse("e4m3:tensor:pow2/floor"))
    with pytest.raises(
        ValueError, match="unknown rounding 'stochastic' of shifts; choose from nearest"
    ):
        requantize_shift(acc, shift, bs.parse("int8:tensor:pow2/floor:stochastic"))


def test_linear() -> None:
    x, weight, bias = whole(-255, 255, 2, 5, 300), whole(-127, 127, 7, 300), whole(-9, 9, 7)
    expected = x.numpy().astype(np.int64) @ weight.numpy().astype(np.int64).T
    assert linear_int32(x, weight, None).numpy().tolist() == expected.tolist()
    assert linear_int32(x, weight, bias).numpy().tolist() == (expected + bias.numpy()).tolist()


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    ("stride", "padding", "dilation"), [(1, 0, 1), (2, 1, 1), (1, 2, 2), (3, 0, 3)]
)
def test_convolutions(stride: int, padding: int, dilation: int, groups: int) -> None:
    for kernel, run in (((3,), F.conv1d), ((3, 2), F.conv2d), ((2, 3, 1), F.conv3d)):
        x = whole(-128, 127, 2, 4, *(11, 11, 7)[: len(kernel)])
        weight, bias = whole(-127, 127, 6, 4 // groups, *kernel), whole(-5000, 5000, 6)
        settings = [[value] * len(kernel) for value in (stride, padding, dilation)]
        expected = run(x.double(), weight.double(), bias.double(), *settings, groups)
        found = conv_int32(x, weight, bias, *settings, groups)
        assert found.dtype == torch.int32
        assert found.tolist() == expected.tolist()


def test_the_largest_sum_is_reached_and_never_passed() -> None:
    weight, bias = whole(-127, 127, 6, 4, 3), whole(-5000, 5000, 6)
    bound = largest_sum(weight, bias, 127)
    signs = weight.flatten(1).sign() * torch.where(bias < 0, -1, 1)[:, None]
    worst = linear_int32(127 * signs.to(torch.int32), weight.flatten(1), bias).diagonal()
    assert int(worst.abs().max()) == bound
    assert largest_sum(weight, None, 127) == int(weight.abs().sum((1, 2)).max()) * 127
    assert largest_sum(torch.full((1, 2**15), 127), None, 2**15) == 127 * 2**30  # beyond int32
    assert largest_sum(whole(0, 0, 1, 3), torch.tensor([-(2**31)]), 127) == 2**31
    assert largest_sum(whole(0, 0, 0, 3), None, 127) == 0


def test_biases() -> None:
    bias = torch.tensor([0.5, 1.5, -2.5, 0.3, -1e-30, 3e8, 0.0])
    exponent = torch.tensor([0, 0, 0, -20, 3, 0, -126], dtype=torch.int32)
    steps = [
        round(Fraction(b) / Fraction(2) ** e)
        for b, e in zip(bias.tolist(), exponent.tolist(), strict=True)
    ]
    found = integer_bias(bias, exponent)
    assert (found.dtype, found.tolist()) == (torch.int32, steps)
    assert integer_bias(bias[:2], torch.tensor(-1, dtype=torch.int32)).tolist() == [1, 3]
    for wrong in (2.0**31, math.nan, -math.inf):
        with pytest.raises(ValueError, match="steps of the sums, more than int32 holds"):
            integer_bias(torch.tensor([wrong]), torch.tensor(0, dtype=torch.int32))


def test_sums_over_windows() -> None:
    x = whole(-(2**20), 2**20, 2, 3, 9, 8)
    for kernel, stride, padding in (([2, 2], [2, 2], [0, 0]), ([3, 2], [1, 2], [1, 1])):
        found = sum_pool2d(x, kernel, stride, padding)
        padded = F.pad(x, (padding[1],) * 2 + (padding[0],) * 2)
        windows = padded.unfold(2, kernel[0], stride[0]).unfold(3, kernel[1], stride[1])
        assert found.dtype == torch.int32
        assert torch.equal(found, windows.sum((-1, -2), dtype=torch.int32))


def test_sums_of_two_exponents() -> None:
    x, y = whole(-128, 127, 50), whole(-30000, 30000, 50)
    shifts = [torch.tensor(n, dtype=torch.int32) for n in (5, 0)]
    found = add_aligned(x, y, *shifts)  # x * 2^-2 + y * 2^-7, in steps of 2^-7
    assert torch.equal(found.double() * 2.0**-7, x.double() * 2.0**-2 + y.double() * 2.0**-7)
