# SPDX-License-Identifier: BSD-3-Clause
"""Rounding shifts against exact rationals."""

import pytest
import torch

import blockscale as bs
from blockscale.core.arithmetic.sums import accumulator
from blockscale.ops.integer.shifts import SHIFT_ROUNDINGS, divided, ended, rescale
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
