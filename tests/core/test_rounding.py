# SPDX-License-Identifier: BSD-3-Clause
"""The six roundings against exact rationals: ties, beside ties, where float32 runs out of bits."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from blockscale.core.rounding import DETERMINISTIC, ROUNDINGS, finite, rounding, stochastic
from tests.support import exact

TIES = [k / 2 for k in range(-19, 20)]
# Halves exist below 2^23; 2^24 + 1 is no float32. Subnormals must not be flushed to zero.
EDGES = [
    2.0**22 + 0.5,
    2.0**23 - 0.5,
    2.0**23 + 1,
    2.0**24,
    1e30,
    exact.FLT_MAX,
    2.0**-149,
    2.0**-126,
]


def points() -> torch.Tensor:
    near = np.float32([*TIES, *EDGES])
    with np.errstate(over="ignore"):  # what follows FLT_MAX is infinity
        beside = [np.nextafter(near, np.float32(side)) for side in (-np.inf, np.inf)]
    t = torch.from_numpy(np.concatenate([near, -near, *beside, -beside[0], -beside[1]]))
    return t[t.isfinite()]


def never() -> torch.Tensor:
    raise AssertionError("a deterministic rounding drew random numbers")


def test_the_six() -> None:
    assert ROUNDINGS == exact.ROUNDINGS
    assert tuple(DETERMINISTIC) == exact.ROUNDINGS[:-1]


@pytest.mark.parametrize("mode", DETERMINISTIC)
def test_deterministic(mode: str) -> None:
    t = points()
    expected = [exact.rounded(Fraction(v), mode) for v in t.double().tolist()]
    actual = rounding(mode, never)(t)
    assert actual.dtype == torch.float32
    assert [int(v) for v in actual.double().tolist()] == expected


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("nearest_even", [-2, -2, 0, 0, 0, 0, 2, 2]),
        ("nearest_away", [-3, -2, -1, 0, 0, 1, 2, 3]),
        ("toward_zero", [-2, -1, 0, 0, 0, 0, 1, 2]),
        ("down", [-3, -2, -1, -1, 0, 0, 1, 2]),
        ("up", [-2, -1, 0, 0, 1, 1, 2, 3]),
    ],
)
def test_by_hand(mode: str, expected: list[int]) -> None:
    # IEEE 754-2019, section 4.3; the fourth and fifth are the float32 next to a half
    below_half = 0.5 - 2.0**-25
    t = torch.tensor([-2.5, -1.5, -0.5, -below_half, below_half, 0.5, 1.5, 2.5])
    assert DETERMINISTIC[mode](t).tolist() == expected


@pytest.mark.parametrize("mode", ROUNDINGS)
def test_infinity_stays(mode: str) -> None:
    t = torch.tensor([math.inf, -math.inf])
    assert rounding(mode, lambda: torch.tensor([0.0, 0.5]))(t).tolist() == [math.inf, -math.inf]


def test_stochastic_is_one_comparison() -> None:
    draws = [0.0, 0.25, 0.5 - 2.0**-24, 0.5, 0.75, 1 - 2.0**-24]
    sizes = [0.0, 1.0, 2.5, 0.5, 0.5 + 2.0**-24, 2.0**-24, 2.0**-149, 2.0**23 + 1, 1 - 2.0**-24]
    pairs = [(sign * t, u) for sign in (1, -1) for t in sizes for u in draws]
    t, u = torch.tensor(pairs).unbind(-1)
    expected = [exact.rounded(Fraction(a), "stochastic", Fraction(b)) for a, b in pairs]
    assert stochastic(u)(t).int().tolist() == expected
    assert rounding("stochastic", lambda: u)(t).int().tolist() == expected


def test_a_draw_that_equals_the_fraction_stays() -> None:
    # u < fraction, strictly: then the chance of moving is exactly the fraction
    assert stochastic(torch.tensor([0.25, 0.25]))(torch.tensor([3.25, -3.25])).tolist() == [3, -3]


def test_finite() -> None:
    t = torch.tensor([1.0, -0.0, math.nan, math.inf, -math.inf, exact.FLT_MAX])
    assert finite(t).tolist() == [1.0, 0.0, 0.0, 0.0, 0.0, exact.FLT_MAX]
