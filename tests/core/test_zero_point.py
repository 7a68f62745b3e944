# SPDX-License-Identifier: BSD-3-Clause
"""Zero points, against exact rationals (docs/numerics.md, 3.6)."""

import math
from fractions import Fraction

import pytest
import torch

from blockscale.core import zero_point
from blockscale.core.parse import parse
from tests.support.exact import FLT_MAX

FORMATS = ["uint8:token:fp32:asym", "int8:token:fp32:asym", "uint1:token:fp32:asym",
           "uint16:token:fp32:asym", "int2:token:fp32:asym"]  # fmt: skip


@pytest.mark.parametrize("spelling", FORMATS)
def test_low_gets_the_lowest_code(spelling: str) -> None:
    """Ties and their neighbours, ends, and ranges that are not reached."""
    fmt = parse(spelling)
    bits, signed = fmt.element.bits, fmt.element.signed
    lowest, highest = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    halves = torch.arange(0, 2 * 2 ** min(bits, 9) + 8) / 2
    low = -torch.cat([halves, torch.nextafter(halves, torch.tensor(math.inf))])
    step = torch.ones_like(low)
    found = zero_point.choose(low, step, fmt)
    expected = [
        max(lowest, min(highest, lowest - round(Fraction(value)))) for value in low.tolist()
    ]
    assert found.dtype == torch.int32
    assert found.tolist() == expected


def test_any_step() -> None:
    low, step = -torch.rand(300) * 100, torch.rand(300) + 0.01
    found = zero_point.choose(low, step, parse("uint8:token:fp32:asym"))
    quotients = (low / step).tolist()  # rounded once, by IEEE division
    assert found.tolist() == [min(255, -round(Fraction(q))) for q in quotients]


def test_blocks_without_a_range_and_poisoned_ones() -> None:
    low = torch.tensor([0.0, -FLT_MAX, -1.0, -1.0])
    step = torch.tensor([2.0**-126, 1.0, math.nan, 0.0])
    fmt = parse("uint8:token:fp32:asym")
    assert zero_point.choose(low, step, fmt).tolist() == [0, 255, 0, 255]
    signed = parse("int8:token:fp32:asym")
    assert zero_point.choose(low, step, signed).tolist() == [-128, 127, 0, 127]


def test_each_lies_over_its_block() -> None:
    fmt = parse("uint4:group2:fp32:asym")
    zero = torch.tensor([[1, 2], [3, 4]], dtype=torch.int32)
    spread = zero_point.expand(zero, fmt, torch.Size([2, 3]))
    assert spread.dtype == torch.float32
    assert spread.tolist() == [[1, 1, 2], [3, 3, 4]]
    assert zero_point.expand(None, fmt, torch.Size([2, 3])) is None
