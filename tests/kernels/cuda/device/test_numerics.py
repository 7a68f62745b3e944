# SPDX-License-Identifier: BSD-3-Clause
"""Arithmetic on the device is exact: beside Python's own, and IEEE's through numpy."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from blockscale.kernels.cuda.device import numerics
from tests.kernels.cuda.device.calls import refused, result
from tests.support.cuda_equal import DEVICE

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def floats(count: int) -> torch.Tensor:
    """Any bit pattern of float32 that is a number."""
    bits = torch.randint(-(2**31), 2**31, (count,)).to(torch.int32)
    x = bits.view(torch.float32)
    return torch.where(x.isfinite(), x, 1.5)


def test_powers_of_two() -> None:
    n = torch.arange(-149, 128, dtype=torch.int32)
    found = result(numerics.pow2, n, dtype=torch.float32)
    assert [float(v) for v in found] == [math.ldexp(1.0, int(i)) for i in n]


def test_division_is_correctly_rounded() -> None:
    x, y = floats(500), floats(500)
    y = torch.where(y == 0, 1.0, y)
    expected = torch.from_numpy(x.numpy() / y.numpy())
    assert torch.equal(result(numerics.divide, x, y, dtype=torch.float32), expected)
    expected = torch.from_numpy(np.float32(1) / y.numpy())
    assert torch.equal(result(numerics.reciprocal, y, dtype=torch.float32), expected)


@triton.jit
def _exponent(x):
    return numerics.normalized(x)[0]


@triton.jit
def _fraction(x):
    return numerics.normalized(x)[1]


def test_a_number_is_its_exponent_and_fraction() -> None:
    """Subnormal ones, too, which are brought up first."""
    x = torch.cat([floats(300).abs() + 1e-44, torch.tensor([2.0**-149, 2.0**-127, 3e38, 1.0])])
    exponents = result(_exponent, x, dtype=torch.int32)
    fractions = result(_fraction, x, dtype=torch.int32)
    for value, power, fraction in zip(x, exponents, fractions, strict=True):
        exact = (1 + Fraction(int(fraction), 2**23)) * Fraction(2) ** (int(power) - 127)
        assert Fraction(float(value)) == exact


@triton.jit
def _rounded(m, negative, u, out, rounding: tl.constexpr, n: tl.constexpr):
    at = tl.arange(0, n)
    value = numerics.whole_magnitude(
        tl.load(m + at), tl.load(negative + at) != 0, tl.load(u + at), rounding
    )
    tl.store(out + at, value)


def expected(rounding: str, size: Fraction, negative: bool, u: int) -> int:
    """The magnitude of the integer that a number becomes (docs/numerics.md, section 2)."""
    down = math.floor(size)
    rest = size - down
    return (
        down
        + {
            "nearest_even": round(size) - down,
            "nearest_away": int(rest >= Fraction(1, 2)),
            "toward_zero": 0,
            "down": int(negative and rest > 0),
            "up": int(not negative and rest > 0),
            "stochastic": int(Fraction(u, 2**24) < rest),
        }[rounding]
    )


@pytest.mark.parametrize(
    "rounding", ["nearest_even", "nearest_away", "toward_zero", "down", "up", "stochastic"]
)
def test_magnitudes_become_integers(rounding: str) -> None:
    m = torch.cat([torch.arange(64) / 4, torch.rand(60) * 3, torch.tensor([2.0**-20, 0, 1e6, 5.5])])
    negative = (torch.arange(128) % 2).to(torch.int32)
    u = torch.randint(0, 2**24, (128,)).float()
    u[:8] = torch.tensor([0, 2**22, 2**23, 3 * 2**22] * 2).float()
    out = torch.empty(128, device=DEVICE)
    _rounded[(1,)](m.to(DEVICE), negative.to(DEVICE), u.to(DEVICE), out, rounding=rounding, n=128)
    wanted = [
        expected(rounding, Fraction(float(a)), bool(s), int(r))
        for a, s, r in zip(m, negative, u, strict=True)
    ]
    assert out.tolist() == wanted


def test_an_unknown_rounding_is_refused() -> None:
    x = torch.zeros(4, device=DEVICE)
    with refused("unknown rounding"):
        _rounded[(1,)](x, x.int(), x, x, rounding="to_odd", n=4)
