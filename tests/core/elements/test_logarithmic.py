# SPDX-License-Identifier: BSD-3-Clause
"""Logarithmic numbers: 0 and the powers of two up to 1."""

import re

import pytest
import torch

import blockscale as bs
from blockscale.core.elements import read_element
from blockscale.core.elements.logarithmic import EXAMPLES
from tests.core.elements.points import encode
from tests.support.oracle_elements import Minifloat


def exact(name: str, options: frozenset[str]) -> Minifloat | None:
    """The oracle of the element `name`."""
    del options
    spelled = re.fullmatch(r"log(\d+)", name)
    if spelled is None:
        return None
    bits = int(spelled[1])
    return Minifloat(bits - 1, 0, 0, 2 ** (bits - 1) - 1)


@pytest.mark.parametrize("name", EXAMPLES)
def test_values_are_zero_and_powers_of_two_up_to_one(name: str) -> None:
    element = read_element(name)
    half = 2 ** (element.bits - 1)
    powers = [2.0**-k for k in range(half - 1)][::-1]
    values = element.decode(torch.arange(2 * half, dtype=torch.uint8)).tolist()
    assert values == [0.0, *powers, -0.0, *(-power for power in powers)]


@pytest.mark.parametrize("name", EXAMPLES)
def test_products_are_sums_of_exponents(name: str) -> None:
    """The product of two values of at least the smallest one's square root is a value, exactly."""
    element = read_element(name)
    half = 2 ** (element.bits - 1)
    codes = torch.arange(half // 2 + 1, half, dtype=torch.uint8)
    values = element.decode(codes)
    products = values[:, None] * values[None]
    sums = (codes[:, None].int() + codes[None].int() - (half - 1)).clamp(min=1)
    assert encode(name, products).tolist() == sums.tolist()


def test_by_hand() -> None:
    y = torch.tensor([1.0, 2.0, 0.75, 0.74, 0.0, -0.5, 2.0**-6, 2.0**-7, float("nan")])
    # ties: 0.75, 1.5 steps of 1/2, becomes 2 of them; 2^-7, half a step of 2^-6, becomes 0
    assert encode("log4", y).tolist() == [7, 7, 7, 6, 0, 14, 1, 0, 0]


def test_grain() -> None:
    grains = [bs.parse(f"log{b}:tensor:fp32").element.grain for b in range(2, 9)]
    assert grains == [0, 2, 6, 14, 14, 14, 14]
    others = [bs.parse(f"{n}:tensor:fp32").element.grain for n in ("int8", "binary", "e4m3")]
    assert others == [0, 0, None]
