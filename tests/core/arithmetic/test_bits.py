# SPDX-License-Identifier: BSD-3-Clause
"""Exponents, mantissas and powers of two from bits, against Python's own exact arithmetic."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from blockscale.core.arithmetic.precision import (
    FLT_MAX,
    FLT_MIN,
    FLT_SMALLEST,
    divide,
    exponent,
    mantissa,
    pow2,
)
from tests.support import exact


def awkward() -> torch.Tensor:
    """Every power of two that float32 holds, its neighbours, subnormals, both signs."""
    powers = np.float32(2.0) ** np.arange(-149, 128).astype(np.float32)
    below = np.nextafter(powers, np.float32(0))
    above = np.nextafter(powers, np.float32(np.inf))
    values = np.concatenate([powers, below[below > 0], above, np.float32([FLT_MAX, 1e-45, 1e-40])])
    return torch.from_numpy(np.concatenate([values, -values]))


def test_limits_are_float32s() -> None:
    info = torch.finfo(torch.float32)
    assert (info.max, info.smallest_normal) == (FLT_MAX, FLT_MIN)
    assert float(torch.tensor(FLT_SMALLEST)) == FLT_SMALLEST
    assert float(torch.tensor(FLT_SMALLEST / 2)) == 0  # half of it is a tie, which goes to 0


def test_exponents() -> None:
    x = awkward()
    found = exponent(x)
    assert found.dtype == torch.int32
    assert found.tolist() == [exact.exponent(abs(Fraction(v))) for v in x.tolist()]


def test_mantissas() -> None:
    x = awkward()
    found = mantissa(x)
    assert found.dtype == torch.int32
    assert found.tolist() == [int(exact.mant(abs(Fraction(v)))) for v in x.tolist()]


def test_powers_of_two() -> None:
    n = torch.arange(-149, 128, dtype=torch.int32)
    found = pow2(n)
    assert found.dtype == torch.float32
    assert found.tolist() == [math.ldexp(1.0, power) for power in n.tolist()]
    assert exponent(found).tolist() == n.tolist()


@pytest.mark.parametrize("value", [127.5, 448.0, 3.0, 0.1, 2688.0])
def test_division_rounds_once(value: float) -> None:
    """As exact rationals do, and not as a product with a reciprocal does."""
    x = torch.cat([torch.randn(500), awkward()])
    fl = float(torch.tensor(value))
    expected = [exact.nearest(Fraction(v) / Fraction(fl)) for v in x.tolist()]
    assert divide(x, value).tolist() == expected
    assert (x * torch.tensor(1 / value)).tolist() != expected
