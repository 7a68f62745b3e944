# SPDX-License-Identifier: BSD-3-Clause
"""HQQ: its closed forms against brute force, and never worse in its own objective."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import blockscale as bs
from blockscale.calibration.algorithms.hqq import HQQ, shrink
from tests.support import strategies
from tests.support.algorithms_mse import FORMATS

STUCK = "e2m1:group8:(e4m3:group4@0:fp32)"  # coarse scales, like powers of two, seldom move


Quantized = bs.ops.tensor.QTensor


def objective(x: torch.Tensor, q: Quantized, p: float = 0.7) -> np.ndarray:
    """The sum of |e|^p of each block, by numpy, one element after another."""
    error = np.abs((x.double() - q.dequantize().double()).numpy()) ** p
    sizes = q.format.block.sizes_for(2)
    rows, columns = (np.arange(n) // (s or n) for n, s in zip(x.shape, sizes, strict=True))
    found = np.zeros(q.qparams.scale.shape)
    np.add.at(found, (rows[:, None], columns[None]), error)
    return found


def with_outliers(n: int, k: int) -> torch.Tensor:
    """Heavy tails, and rows of very different size."""
    return torch.randn(n, k).pow(3) * torch.logspace(-3, 3, n)[:, None]


@pytest.mark.some(3)
@pytest.mark.parametrize("fmt", FORMATS)
def test_no_block_gets_worse_and_the_whole_gets_better(fmt: str) -> None:
    x = with_outliers(12, 36)
    plain, (best, notes) = bs.quantize(x, fmt), HQQ().quantize(x, bs.parse(fmt), None, "layer")
    before, after = objective(x, plain), objective(x, best)
    assert notes == []
    assert (after <= before * (1 + 1e-12)).all()
    if "/" not in fmt and ":tensor:" not in fmt and fmt not in ("mxfp4", STUCK):
        assert after.sum() < before.sum()
    again = bs.quantize(x, fmt, best.scale, best.zero_point)
    assert torch.equal(again.packed, best.packed)


@pytest.mark.filterwarnings("ignore:no cpu kernel runs")  # of the reference, too
@given(st.data())
@settings(max_examples=15)
def test_any_format(data: st.DataObject) -> None:
    fmt = bs.parse(data.draw(strategies.spellings(2).filter(strategies.is_searchable)))
    x = torch.randn(5, 7) * 10.0 ** data.draw(st.integers(-40, 38))
    x = torch.where(x.isfinite(), x, 0.0)
    p = data.draw(st.sampled_from([0.3, 0.7]))
    if fmt.rounding == "stochastic":
        with pytest.raises(ValueError, match="rounds stochastically"):
            HQQ(p).quantize(x, fmt, None, "layer")
        return
    best, _ = HQQ(p, steps=5).quantize(x, fmt, None, "layer")
    assert (objective(x, best, p) <= objective(x, bs.quantize(x, fmt), p) * (1 + 1e-12)).all()


def test_one_step_against_the_formulas() -> None:
    """int3 with a zero point: one step, written out in numpy for one block."""
    x = torch.tensor([[0.1, -0.4, 0.33, 2.0, 0.7, -0.2, 0.05, 1.1]])
    fmt = bs.parse("int3:token:fp32:asym")
    algorithm = HQQ(0.5, beta=2.0, steps=1)
    q, _ = algorithm.quantize(x, fmt, None, "layer")
    plain = bs.quantize(x, fmt)
    w, scale = x.double().numpy()[0], plain.qparams.scale.item()
    zero = plain.qparams.zero_point.item()
    v = plain.codes.double().numpy()[0] - zero
    e = w / scale - v
    aside = np.sign(e) * np.maximum(np.abs(e) - np.abs(e) ** -0.5 / 2, 0)
    rest = w / scale - aside
    fitted = scale * (rest @ v) / (v @ v)
    moved = zero + np.rint((v - rest * scale / fitted).mean())
    expected = bs.quantize(
        x, fmt, torch.tensor([[fitted]], dtype=torch.float32), torch.tensor([[moved]]).int()
    )
    assert objective(x, expected, 0.5) < objective(x, plain, 0.5)
    assert q.qparams.zero_point.item() == moved
    assert torch.equal(q.codes, expected.codes)
    np.testing.assert_allclose(q.qparams.scale.item(), fitted, rtol=1e-6)


@pytest.mark.parametrize(("p", "beta"), [(0.7, 10.0), (0.5, 4.0)])
def test_shrink_is_nearly_the_minimum(p: float, beta: float) -> None:
    """Brute force over w of |w|^p / p + beta/2 (w - e)^2, whose stationary points it nears."""
    e = np.linspace(-3, 3, 61)
    w = np.linspace(-3, 3, 6001)
    cost = np.abs(w) ** p / p + beta / 2 * (w - e[:, None]) ** 2
    best = w[cost.argmin(1)]
    found = shrink(torch.from_numpy(e), p, beta).numpy()
    assert (np.abs(found) <= np.abs(e)).all() and (np.sign(found) * np.sign(e) >= 0).all()
    far = np.abs(e) >= 1
    np.testing.assert_allclose(found[far], best[far], atol=0.05)
    near = np.abs(e) <= (1 / beta) ** (1 / (2 - p))
    assert (found[near] == 0).all() and (best[near] == 0).all()


def test_outliers_count_less() -> None:
    """With a larger p the outlier of each block pulls more."""
    x = torch.randn(64, 32)
    x[:, 5] = 8.0
    fmt = bs.parse("int4:group32:fp32")
    low, high = (HQQ(p).quantize(x, fmt, None, "layer")[0] for p in (0.3, 0.99))
    of_outliers = [float((q.dequantize() - x)[:, 5].square().mean()) for q in (low, high)]
    assert (objective(x, low, 0.3).sum() < objective(x, high, 0.3).sum()).all()
    assert of_outliers[0] > of_outliers[1]


def test_zeros_empty_and_one() -> None:
    for fmt in ("int4:group8:fp32", "uint4:group8:fp32:asym", "mxfp4"):
        for x in (torch.zeros(3, 16), torch.empty(0, 8), torch.empty(3, 0), torch.ones(1, 1)):
            q, _ = HQQ().quantize(x, bs.parse(fmt), None, "layer")
            assert torch.equal(q.dequantize(), bs.quantize(x, fmt).dequantize())


def test_what_it_refuses() -> None:
    fmt = bs.parse("int4:group8:fp32")
    with pytest.raises(ValueError, match="head: 16 of 16 weights are NaN or infinite"):
        HQQ().quantize(torch.full((2, 8), torch.nan), fmt, None, "head")
    for p in (0, 1, "fast"):
        with pytest.raises(
            ValueError,
            match=r"hqq: p \(errors count as \|e\|\^p\) must be above 0 and below 1, got",
        ):
            HQQ(p)
    with pytest.raises(ValueError, match="beta must be > 0, growth >= 1 and steps >= 1, got 0"):
        HQQ(beta=0)
    with pytest.raises(ValueError, match="beta must be > 0, growth >= 1 and steps >= 1"):
        HQQ(steps=0)
