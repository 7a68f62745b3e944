# SPDX-License-Identifier: BSD-3-Clause
"""Rounding shifts against exact rationals."""

from fractions import Fraction

import numpy as np
import pytest
import torch

import blockscale as bs
from blockscale.core.arithmetic.sums import accumulator
from blockscale.ops.integer.shifts import (
    SHIFT_ROUNDINGS,
    divided,
    ended,
    requantize_shift,
    rescale,
    shift_right,
)
from tests.support.integer_oracle import ended as exactly
from tests.support.integer_oracle import rounded, whole

ENDS = [2**31 - 1, -(2**31) + 1, 2**30, -(2**30), 3 * 2**29, -3 * 2**29]
SMALL = [*range(-70, 71), *ENDS]
WIDE = [*SMALL, 2**45 + 2**21, -(2**45), 2**62 - 1, 3 * 2**40 + 2**17]


@pytest.mark.parametrize("rounding", [r for r in SHIFT_ROUNDINGS if r != "half_up"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_ends_in_codes(dtype, rounding):
    values = WIDE if dtype == torch.int64 else SMALL
    plain = rounding == "nearest_even"
    fmt = "int8:tensor:pow2/nearest" + ("" if plain else f":{rounding}")
    for shift in (-62, -31, -5, -1, 0, 1, 2, 5, 15, 24, 31, 40, 62):
        acc = torch.tensor(values, dtype=dtype)
        found = ended(acc, torch.tensor([shift], dtype=torch.int32), 3, -100, 127, fmt)
        expected = [exactly(v, shift, 3, -100, 127, rounding) for v in values]
        assert found.tolist() == expected and found.dtype == torch.int8


def test_each_channel_has_its_shift():
    acc = whole(-1000, 1000, 5, 3)
    found = ended(
        acc, torch.tensor([1, 0, 4], dtype=torch.int32), 0, -127, 127, "int8:tensor:pow2/floor"
    )
    expected = [
        [exactly(v, s, 0, -127, 127, "nearest_even") for v, s in zip(row, (1, 0, 4), strict=True)]
        for row in acc.tolist()
    ]
    assert found.tolist() == expected


def test_sums_stay_sums():
    acc = torch.tensor([5, -7], dtype=torch.int32)
    assert ended(acc, torch.tensor([-3], dtype=torch.int32), 0, 0, 0, "").tolist() == [40, -56]
    assert ended(acc, torch.tensor([0], dtype=torch.int32), 0, 0, 9, "").tolist() == [5, 0]


def test_shifts_are_quantize_under_that_scale():
    """The rule is the format's: the code that `bs.quantize` gives for acc * step."""
    for fmt in ("int8:tensor:pow2/nearest", "int8:tensor:pow2/nearest:nearest_away"):
        acc = torch.arange(-3000, 3000, dtype=torch.int32)
        scale = torch.tensor([0.5])
        expected = bs.quantize(acc.float() / 32, fmt, scale=scale).codes
        found = ended(acc, torch.tensor([4], dtype=torch.int32), 0, -127, 127, fmt)
        assert torch.equal(found, expected)


@pytest.mark.parametrize("rounding", ["nearest_even", "nearest_away", "down", "up", "toward_zero"])
@pytest.mark.parametrize("by", [1, 3, 49, 6, 2**20 + 1])
def test_division_rounds_once(by, rounding):
    from fractions import Fraction

    values = [*range(-200, 200), 3 * by, -by // 2, by // 2, 2**50 + 1]
    found = divided(torch.tensor(values), torch.tensor([by]), rounding)
    assert found.tolist() == [rounded(Fraction(v, by), rounding) for v in values]


def test_what_holds_sums():
    assert accumulator(2**31 - 1) == torch.int32
    assert accumulator(2**31) == torch.int64


def test_rescale():
    x = torch.tensor([0, 130, 255], dtype=torch.uint8)
    found = rescale(
        x, 128, torch.tensor([1], dtype=torch.int32), 0, 0, 127, "int8:tensor:pow2/floor"
    )
    assert found.tolist() == [0, 1, 64]


EIGHT = bs.parse("int8:tensor:pow2/nearest")


def accumulators() -> list[int]:
    """Small ones, so that every shift up to 5 meets its ties, and the ends of int32."""
    ends = [2**31 - 1, -(2**31), 2**31 - 64, 2**30, -(2**30), 3 * 2**29, -3 * 2**29]
    return [*range(-70, 71), *ends, *(whole(-(2**31), 2**31 - 1, 40).tolist())]


@pytest.mark.parametrize("rounding", SHIFT_ROUNDINGS)
def test_every_distance(rounding: str) -> None:
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


def test_requantizing_with_a_shift_for_each_channel() -> None:
    acc = whole(-(2**20), 2**20, 3, 4, 5)
    shift = torch.tensor([[14], [-2], [0], [40]], dtype=torch.int32)
    found = requantize_shift(acc, shift, EIGHT)
    for channel in range(4):
        alone = requantize_shift(acc[:, channel], shift[channel], EIGHT)
        assert torch.equal(found[:, channel], alone)


def test_what_no_shift_gives() -> None:
    acc, shift = whole(-9, 9, 4), torch.tensor(1, dtype=torch.int32)
    with pytest.raises(
        ValueError, match="requantizing by a shift gives integers such as int8, not e4m3"
    ):
        requantize_shift(acc, shift, bs.parse("e4m3:tensor:pow2/floor"))
    with pytest.raises(
        ValueError, match="unknown rounding 'stochastic' of shifts; choose from nearest"
    ):
        requantize_shift(acc, shift, bs.parse("int8:tensor:pow2/floor:stochastic"))
