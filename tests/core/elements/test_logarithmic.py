# SPDX-License-Identifier: BSD-3-Clause
"""Logarithmic numbers: 0 and the powers of two up to 1; with fractions of an exponent every value
the nearest float32 of an exact power."""

import re
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch

import blockscale as bs
from blockscale.core.elements import read_element
from blockscale.core.elements.logarithmic import FRACTIONAL, WHOLE, power
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


@pytest.mark.parametrize("name", WHOLE)
def test_values_are_zero_and_powers_of_two_up_to_one(name: str) -> None:
    element = read_element(name)
    half = 2 ** (element.bits - 1)
    powers = [2.0**-k for k in range(half - 1)][::-1]
    values = element.decode(torch.arange(2 * half, dtype=torch.uint8)).tolist()
    assert values == [0.0, *powers, -0.0, *(-power for power in powers)]


@pytest.mark.parametrize("name", WHOLE)
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


# With fractions of an exponent.


@pytest.mark.parametrize("bits", [1, 2, 3, 6])
def test_powers_by_exact_comparison(bits: int) -> None:
    """v is nearest to 2^(n/2^F) if the middles to its neighbours, to the power 2^F, enclose 2^n."""
    for numerator in range(-130, 40):
        value = np.float32(power(numerator, bits))
        exact = Fraction(2) ** numerator
        middles = [
            (Fraction(float(value)) + Fraction(float(np.nextafter(value, to)))) / 2
            for to in (np.float32(0), np.float32(np.inf))
        ]
        assert middles[0] ** 2**bits < exact < middles[1] ** 2**bits


@pytest.mark.parametrize("name", FRACTIONAL)
def test_values_of_fractions(name: str) -> None:
    element = read_element(name)
    half = 2 ** (element.bits - 1)
    values = element.decode(torch.arange(2 * half, dtype=torch.uint8))
    assert values[0] == 0 and values[half] == 0 and bool(values.signbit()[half:].all())
    assert values[half - 1] == element.max == 1
    assert torch.equal(values[half:], -values[:half])
    ratios = values[2:half].double() / values[1 : half - 1].double()
    step = 2.0 ** (1 / 2 ** int(name[-1]))
    assert bool(((ratios / step - 1).abs() < 2.0**-22).all())


def test_names_with_nothing_to_gain_are_refused() -> None:
    for name in ("log4f3", "log8f7", "log3f1", "log9f1", "log8f0"):
        with pytest.raises(ValueError, match="unknown element"):
            read_element(name)


def test_bits_lower_the_error() -> None:
    """What the element is for: each bit of a fraction halves the error of normal numbers."""
    x = torch.randn(64, 512, generator=torch.Generator().manual_seed(0))
    errors = [
        float((bs.fake_quantize(x, f"{name}:channel0:fp32") - x).square().mean())
        for name in ("log8", "log8f1", "log8f2", "log8f3")
    ]
    assert all(after < before / 2.5 for before, after in pairwise(errors))
