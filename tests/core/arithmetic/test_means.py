# SPDX-License-Identifier: BSD-3-Clause
"""Magnitudes as whole units: their sums are exact, in whatever pieces they are taken."""

from fractions import Fraction

import pytest
import torch

from blockscale.core.arithmetic.means import in_units, mean_of, unit_exponent
from blockscale.core.block import read_block
from blockscale.core.blocks import Blocks

EDGES = [
    0.0, 2.0**-149, 3 * 2.0**-149, 2.0**-126, 2.0**-126 - 2.0**-149, 0.99999994, 1.0, 1.0000001,
    1.9999999, 2.0, 6.5e4, 3.4028234663852886e38,
]  # fmt: skip


@pytest.mark.parametrize("largest", EDGES)
def test_the_exponent_is_the_largest_magnitude_s(largest: float) -> None:
    power = int(unit_exponent(torch.tensor(largest)))
    if largest < 2.0**-126:  # subnormals share the smallest exponent, and a zero has that of 1
        assert power == (0 if largest == 0 else -126)
    else:
        assert Fraction(2) ** power <= Fraction(largest) < Fraction(2) ** (power + 1)


@pytest.mark.parametrize("largest", EDGES[1:])
def test_units_are_rounded_down(largest: float) -> None:
    size = torch.tensor([e for e in EDGES if e <= largest])
    power = unit_exponent(torch.tensor(largest))
    unit = Fraction(2) ** (int(power) - 30)
    expected = [int(Fraction(float(x)) / unit) for x in size]
    assert in_units(size, power).tolist() == expected
    assert max(expected) < 2**31


def test_the_mean_of_nothing_is_zero() -> None:
    nothing = torch.zeros((), dtype=torch.int64)
    assert mean_of(nothing, nothing, torch.tensor(0, dtype=torch.int32)).item() == 0.0


@pytest.mark.parametrize("scale", [1.0, 1e-40, 1e38])
def test_pieces_give_the_mean_of_the_whole(scale: float) -> None:
    x = (torch.randn(1000) * scale).clamp(-3e38, 3e38)
    whole = Blocks(x, read_block("tensor")).mean_magnitude()
    power = unit_exponent(x.abs().amax())
    pieces = [in_units(piece.abs(), power) for piece in x.split([1, 400, 599])]
    total = sum(int(piece.sum()) for piece in pieces)
    mean = mean_of(torch.tensor(total), torch.tensor(x.numel()), power)
    assert torch.equal(mean, whole.squeeze())
