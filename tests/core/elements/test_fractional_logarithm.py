# SPDX-License-Identifier: BSD-3-Clause
"""Logarithms with fractions of an exponent: every value the nearest float32 of an exact power."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch

from blockscale.core.elements import read_element
from blockscale.core.elements.fractional_logarithm import EXAMPLES, power


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


@pytest.mark.parametrize("name", EXAMPLES)
def test_values(name: str) -> None:
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
    import blockscale as bs

    x = torch.randn(64, 512, generator=torch.Generator().manual_seed(0))
    errors = [
        float((bs.fake_quantize(x, f"{name}:channel0:fp32") - x).square().mean())
        for name in ("log8", "log8f1", "log8f2", "log8f3")
    ]
    assert all(after < before / 2.5 for before, after in pairwise(errors))
