# SPDX-License-Identifier: BSD-3-Clause
"""What integers mean."""

import pytest
import torch

import blockscale as bs
from blockscale.graph.lowering.integers.fixed import Fixed, NotIntegerError, fixed_of, int32, sums


def test_meanings():
    fixed = Fixed(-3, 10, 0, 255, "uint8:tensor:pow2/nearest:asym")
    assert (fixed.largest, fixed.bits) == (245, 8)
    assert [Fixed(0, 0, -b, b).bits for b in (127, 128, 32767, 32768, 2**31)] == [8, 16, 16, 32, 64]


def test_of_formats():
    fmt = bs.parse("uint8:tensor:pow2/nearest:asym")
    found = fixed_of(fmt, torch.tensor([0.25]), torch.tensor([7]), "it")
    assert found == Fixed(-2, 7, 0, 255, str(fmt))
    byte = bs.parse("int8:tensor:e8m0")  # steps are 2^-6 smaller than the byte says
    assert fixed_of(byte, torch.tensor([127], dtype=torch.uint8), None, "it").exponent == -6


@pytest.mark.parametrize(
    ("fmt", "scale", "message"),
    [
        (
            "int8:tensor:pow2/nearest",
            0.3,
            "it has a scale that is not a power of two: use pow2/RULE or e8m0/RULE",
        ),
        ("int8:tensor:pow2/nearest", float("nan"), "it has a scale that is NaN"),
        ("int8:tensor:pow2/nearest:stochastic", 0.5, "without stochastic rounding"),
        ("int8:tensor:fp32", 0.5, "needs a power-of-two scale"),
        ("int8:tensor:pow2/nearest:offset", 0.5, "adds a float offset to its codes|offset"),
    ],
)
def test_what_is_refused(fmt, scale, message):
    with pytest.raises(NotIntegerError, match=message):
        fixed_of(bs.parse(fmt), torch.tensor([scale]), None, "it")


def test_sums():
    assert sums(-20, 1000, "it") == Fixed(-20, 0, -1000, 1000)
    with pytest.raises(NotIntegerError, match=r"sums of it can reach .* more than int64 holds"):
        sums(0, 2**63, "it")
    with pytest.raises(NotIntegerError, match=r"have the step 2\^-150, outside"):
        sums(-150, 1, "it")


def test_shifts_have_an_end():
    assert int32([3, -100, 2**40]).tolist() == [3, -62, 62]
