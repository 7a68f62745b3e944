# SPDX-License-Identifier: BSD-3-Clause
"""The MSE observer against a brute-force search in numpy, float64."""

import numpy as np
import pytest
import torch

import blockscale as bs
from blockscale.core import reference


def mse(fmt, *batches):
    observer = bs.observers.make("mse", fmt)
    for batch in batches:
        observer.observe(batch)
    return observer


def int_error(x, scale, zero, low, high):
    """Squared error of integers in float64."""
    codes = np.clip(np.rint(x / scale) + zero, low, high)
    return np.mean(((codes - zero) * scale - x) ** 2)


def error_of(observer, x):
    scale, outer, zero = observer.qparams()[:3]
    fmt = observer.format
    y = reference.fake_quantize(x, reference.QParams(scale, outer, zero), fmt)
    return float((y.double() - x.double()).square().mean())


def tensors():
    generator = torch.Generator().manual_seed(11)
    normal = torch.randn(2000, generator=generator)
    return {
        "normal": normal,
        "heavy": normal**5,
        "outlier": torch.cat([normal, torch.tensor([60.0])]),
        "skewed": torch.nn.functional.gelu(3 * normal),
        "relu": normal.relu(),
    }


@pytest.mark.some(8)
@pytest.mark.parametrize("name", tensors())
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_symmetric_is_as_good_as_brute_force(name, bits):
    x = tensors()[name]
    top = 2 ** (bits - 1) - 1
    amax = float(x.abs().max())
    thresholds = np.concatenate([np.linspace(1, 0.01, 1500), np.logspace(-2, -4, 200)]) * amax
    best = min(int_error(x.double().numpy(), t / top, 0, -top, top) for t in thresholds)
    assert error_of(mse(f"int{bits}:tensor:fp32", x), x) <= 1.02 * best


@pytest.mark.slow
@pytest.mark.parametrize("name", ["normal", "skewed", "outlier"])
def test_asymmetric_is_as_good_as_brute_force(name):
    x = tensors()[name]
    values = x.double().numpy()
    best = np.inf
    for a in np.linspace(0.02, 1, 60):
        for b in np.linspace(0.02, 1, 60):
            low, high = a * min(values.min(), 0), b * max(values.max(), 0)
            scale = (high - low) / 15
            best = min(best, int_error(values, scale, np.clip(-np.rint(low / scale), 0, 15), 0, 15))
    assert error_of(mse("uint4:tensor:fp32:asym", x), x) <= 1.02 * best


@pytest.mark.slow
@pytest.mark.some(8)
@pytest.mark.parametrize("rule", ["floor", "ceil", "nearest", "even"])
@pytest.mark.parametrize("element", ["int4", "int8", "e2m1", "e4m3"])
def test_powers_of_two_are_searched_completely(element, rule):
    """There are only a few scales: the observer has to find the best of all of them."""
    for x in tensors().values():
        fmt = bs.parse(f"{element}:tensor:pow2/{rule}")
        observer = mse(fmt, x)
        errors = []
        for power in range(-24, 8):
            scale = torch.tensor([2.0**power])
            y = reference.fake_quantize(x, reference.QParams(scale), fmt)
            errors.append(float((y.double() - x).square().mean()))
        assert error_of(observer, x) <= 1.0001 * min(errors)


@pytest.mark.some(3)
@pytest.mark.parametrize(
    "fmt",
    [
        "int4:channel-1:fp16", "uint4:group32:fp32:asym", "e2m1:group32:e8m0/ceil",
        "int4:group32:fp32:full", "log4:channel0:fp32", "int4:tensor:fp32:half:down",
        "ternary:channel0:fp32", "e2m1:group16:e4m3", "int8:tensor:fp32:stochastic",
    ],
)  # fmt: skip
def test_no_block_is_worse_than_its_full_range(fmt):
    generator = torch.Generator().manual_seed(12)
    x = torch.randn(32, 64, generator=generator) ** 3
    observer = mse(fmt, x)
    form = bs.parse(fmt.replace(":stochastic", ""))
    plain = reference.choose_qparams(x, form)
    owner = torch.arange(observer.low.numel()).reshape(observer.low.shape)
    owner = form.block.expand(owner, x.shape).expand(x.shape)
    ours, theirs = (
        torch.bincount(
            owner.flatten(), (reference.fake_quantize(x, q, form) - x).double().square().flatten()
        )
        for q in (observer.qparams(), plain)
    )
    assert bool((ours <= 1.02 * theirs).all())  # bins stand for their values to 2^-9
    if form.element.bits <= 4:
        assert ours.sum() < 0.99 * theirs.sum()


def test_binary_is_the_mean():
    """mean |x| is the best scale of a sign (XNOR-Net, equation 6)."""
    x = torch.randn(5000, generator=torch.Generator().manual_seed(13))
    scale = mse("binary:tensor:fp32", x).qparams().scale.item()
    np.testing.assert_allclose(scale, x.abs().mean().item(), rtol=2**-6)


def test_what_is_exact_stays():
    """No error at the full range: nothing smaller may win."""
    x = torch.arange(-127.0, 128.0)
    assert mse("int8:tensor:fp32", x).qparams().scale.item() == 1.0
    assert mse("int8:tensor:fp32", torch.zeros(4)).range().high.item() == 0.0


def test_low_and_high_say_what_is_clipped():
    x = torch.randn(4000, generator=torch.Generator().manual_seed(14)).clamp(max=1.0)
    x = torch.cat([x, torch.tensor([-20.0])])
    low, high, _ = mse("int4:tensor:fp32", x).range()
    assert -20 < low < -2
    assert high == x.max()  # inside the symmetric range that low sets


def test_two_levels_keep_their_outer_scale():
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(15))
    found, plain = mse("nvfp4", x).qparams(), reference.choose_qparams(x, bs.parse("nvfp4"))
    assert torch.equal(found.outer, plain.outer)
    assert not torch.equal(found.scale, plain.scale)


def test_weights_move_the_choice():
    """What has no weight may be clipped."""
    x = torch.cat([torch.linspace(-1, 1, 999), torch.tensor([50.0])])
    plain, weighted = mse("int8", x), bs.observers.make("mse:weighted", "int8")
    weighted.observe(x, weight=(x < 2).float())
    assert plain.range().high == 50
    np.testing.assert_allclose(weighted.range().high.item(), 1.0, rtol=0.05)
    ones = bs.observers.make("mse:weighted", "int8")
    ones.observe(x, weight=torch.tensor(2.0))
    assert ones.range().high == 50


def test_zeros_are_zeros():
    """A ReLU's many zeros, under a rounding that would make more of anything above them."""
    x = 15 * torch.rand(2000, generator=torch.Generator().manual_seed(16))
    x = torch.cat([x, torch.zeros(100_000)])
    fmt = bs.parse("uint4:tensor:fp32:up")
    errors = []
    for threshold in torch.linspace(0.1, 15, 150):
        scale = torch.tensor([threshold / 15])
        left = reference.fake_quantize(x, reference.QParams(scale), fmt)
        errors.append(float((left.double() - x).square().mean()))
    assert error_of(mse(str(fmt), x), x) <= 1.02 * min(errors)


def test_each_end_moves_by_itself():
    x = torch.cat([tensors()["normal"], torch.tensor([12.0])])
    low, high, _ = mse("uint4:tensor:fp32:asym", x).range()
    assert high / 12 < low / x.min() - 0.05
