# SPDX-License-Identifier: BSD-3-Clause
"""Activations of results: torch's bits where those are exact, else few units off in float64."""

import pytest
import torch
from torch import Tensor

from blockscale.kernels.cpu import _native
from blockscale.kernels.cpu.linear import ACTIVATIONS
from tests.support.cpu_activate import EXACT, NEAR


def activate(name: str, x: Tensor) -> Tensor:
    y = x.clone()
    _native.activate(ACTIVATIONS[name], y.data_ptr(), y.numel(), 1)
    return y


def every_size() -> Tensor:
    """Floats of every exponent and sign, infinities and NaN, and more of them about 0."""
    bits = torch.arange(-(2**31), 2**31, 4999, dtype=torch.int64).to(torch.int32)
    ends = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 3.0, -3.0, 6.0, 88.8, -103.9])
    near = torch.cat([torch.linspace(-7, 7, 300_001), torch.linspace(-110, 110, 100_003)])
    return torch.cat([bits.view(torch.float32), near, ends])


def excess(name: str, x: Tensor) -> float:
    """The largest error, in the units that NEAR counts."""
    function, _, of_x = NEAR[name]
    exact, found = function(x.double()), activate(name, x)
    sizes = x.double().abs() if of_x else exact.abs()
    # Results that are subnormal have fewer bits; products with x carry that on.
    unit = 2.0**-24 * sizes + 2.0**-149 * x.double().abs().clamp(1)
    finite = x.isfinite()
    return ((found.double() - exact).abs() / unit)[finite].max().item()


@pytest.mark.some(2)
@pytest.mark.parametrize("name", EXACT)
def test_exact(isa: str, name: str) -> None:
    del isa
    x = every_size()
    expected, found = EXACT[name](x), activate(name, x)
    assert torch.equal(found.isnan(), expected.isnan())
    there = ~expected.isnan()
    assert torch.equal(found[there].view(torch.int32), expected[there].view(torch.int32))


@pytest.mark.slow
@pytest.mark.parametrize("name", NEAR)
def test_near(isa: str, name: str) -> None:
    del isa
    assert excess(name, every_size()) <= NEAR[name][1]


@pytest.mark.parametrize("name", NEAR)
def test_the_ends(isa: str, name: str) -> None:
    """What is not a number where torch's float32 gives none; signs of zero."""
    del isa
    function = NEAR[name][0]
    x = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -0.0, 2000.0, -2000.0, 20.0])
    expected = function(x)
    if name == "gelu":  # torch's has NaN at infinity, and zeros of another sign, on some processors
        expected[0] = torch.inf
        expected = expected.copysign(x)
    found = activate(name, x)
    assert torch.equal(found.isnan(), expected.isnan())
    there = ~expected.isnan()
    assert torch.equal(found[there].view(torch.int32), expected[there].view(torch.int32))


@pytest.mark.some(3)
@pytest.mark.parametrize("n", [1, 3, 15, 16, 17, 4096, 4097, 33_000])
def test_every_count_and_nothing_beyond(isa: str, n: int) -> None:
    del isa
    y = torch.linspace(-3, 3, n + 8)
    expected = activate("gelu", y)[:n]
    rest = y[n:].clone()
    _native.activate(ACTIVATIONS["gelu"], y.data_ptr(), n, 2)
    assert torch.equal(y[:n], expected)
    assert torch.equal(y[n:], rest)
