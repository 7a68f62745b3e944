# SPDX-License-Identifier: BSD-3-Clause
"""Integers: their ranges and zero points."""

import math
import re
from fractions import Fraction

import pytest
import torch

from blockscale.core.elements import read_element
from blockscale.core.rounding import DETERMINISTIC
from tests.core.elements.points import encode
from tests.support.oracle_elements import Integer


def exact(name: str, options: frozenset[str]) -> Integer | None:
    """The oracle of the element `name` in a format with these options."""
    spelled = re.fullmatch(r"(u?)int(\d+)", name)
    if spelled is None:
        return None
    bits, asym = int(spelled[2]), bool(options & {"asym", "offset"})
    if spelled[1]:
        qmax = 2**bits - 1
        return Integer(bits, bits - 1, 0, qmax, Fraction(qmax), bits - 1)
    qmax = 2 ** (bits - 1) - 1
    wide = bool(options & {"full", "half", "signed", "asym", "offset"})
    levels = Fraction(2**bits - 1) if asym else qmax + Fraction("half" in options, 2)
    return Integer(bits, bits - 1 if asym else bits - 2, -qmax - wide, qmax, levels, bits - 2)


SATURATED = {
    "int8": ((-127, 127), (-128, 127)),
    "int2": ((-1, 1), (-2, 1)),
    "int16": ((-32767, 32767), (-32768, 32767)),
    "uint8": ((0, 255), (0, 255)),
    "uint1": ((0, 1), (0, 1)),
}


@pytest.mark.parametrize("name", SATURATED)
def test_integers_saturate_and_nan_is_zero(name: str) -> None:
    y = torch.tensor([-math.inf, -1e30, -(2.0**15) - 1, 2.0**17, math.inf, math.nan])
    for wide, (low, high) in zip((False, True), SATURATED[name], strict=True):
        assert encode(name, y, wide=wide).tolist() == [low, low, low, high, high, 0]


def test_a_zero_point_is_added_after_rounding() -> None:
    y = torch.tensor([0.5, 1.5, -0.5, math.nan, math.inf])
    odd = torch.tensor(3.0)
    codes = read_element("uint4").encode(y, DETERMINISTIC["nearest_even"], odd, True)
    assert codes.tolist() == [3, 5, 3, 3, 15]  # rounding 0.5 + 3 would give 4
