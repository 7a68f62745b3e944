# SPDX-License-Identifier: BSD-3-Clause
"""SmoothQuant is equation 4 of its paper, and makes no layer worse."""

from dataclasses import replace

import pytest
import torch

from blockscale.calibration import algorithms
from blockscale.calibration.algorithms.smoothquant import SmoothQuant, balance, divided_by
from blockscale.core.parse import parse
from tests.calibration.algorithms.smoothing import INT8, TOKEN, prepared
from tests.calibration.algorithms.transforms import N, error, outlying, stats_of


def test_equation_4_to_the_bit() -> None:
    """Largest magnitudes that are powers of four: their square roots are powers of two."""
    a, w = (4.0 ** torch.tensor(p) for p in ((3, 0, 0, 0, -1, 0, 1, 0), (0, 0, -1, 0, 1, 0, 0, 0)))
    draw = torch.Generator().manual_seed(0)
    weight, x = (torch.rand(n, 8, generator=draw) * 2 - 1 for n in (N, 40))
    weight, x = weight * w, x * a
    weight[2], x[3] = -w, a
    before, told = prepared(SmoothQuant(), weight, x)
    s = 2.0 ** torch.tensor([3, 0, 1, 0, -2, 0, 1, 0])  # 2^a / 2^w
    assert torch.equal(before.factor, 1 / s)
    moved = before(x).abs().amax(0), before.to_weight(weight).abs().amax(0)
    assert torch.equal(*moved)  # at ½ both sides are as hard
    assert told[0].startswith("alpha 0.5 (error of its output 0.")


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_equation_4(alpha: float) -> None:
    weight, x = outlying()
    before, _ = prepared(SmoothQuant(alpha), weight, x)
    a, w = x.double().abs().amax(0), weight.double().abs().amax(0)
    if before is None:
        assert alpha == 0  # it leaves the outliers where they are
        return
    expected = w ** (1 - alpha) / a**alpha
    torch.testing.assert_close(before.factor.double(), expected, rtol=2**-21, atol=0)


def test_of_several_alphas_the_best_is_taken() -> None:
    alphas = (0.1, 0.4, 0.5, 0.8)
    for seed in range(4):
        weight, x = outlying(seed)
        ours, told = prepared(SmoothQuant(alphas), weight, x)
        a, w = x.abs().amax(0), weight.abs().amax(0)
        tried = {p: divided_by(a**p / w ** (1 - p), pow2=False) for p in alphas}
        errors = {p: error(b, weight, x, "int8_channel", TOKEN) for p, b in tried.items()}
        best = min(errors, key=errors.__getitem__)
        assert torch.equal(ours.factor, tried[best].factor)
        ratio = errors[best] / error(None, weight, x, "int8_channel", TOKEN)
        assert told == [f"alpha {best:g} (error of its output {ratio:.3g} times)"]


@pytest.mark.parametrize("fmt", ["int4:group8:fp32", "mxfp4", "ternary:token:fp32"])
def test_no_layer_gets_worse(fmt: str) -> None:
    for seed in range(6):
        weight, x = outlying(seed)
        if seed % 2:
            x = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
        before, told = prepared(SmoothQuant(), weight, x, fmt, TOKEN)
        found, without = (error(each, weight, x, fmt, TOKEN) for each in (before, None))
        assert found <= without
        assert (before is None) == told[0].startswith("not transformed: the error of its output")


def test_features_that_are_zero_are_left_alone() -> None:
    weight, x = outlying()
    x[:, 3], weight[:, 5] = 0, 0
    for alpha in (0.0, 0.5, 1.0):
        for pow2 in (False, True):
            transform = SmoothQuant(alpha, pow2=pow2)
            before, _ = prepared(transform, weight, x)
            if before is not None:
                assert before.factor[[3, 5]].tolist() == [1, 1]
                assert bool(before.factor.isfinite().all())
    assert prepared(SmoothQuant(), torch.zeros_like(weight), x)[0] is None
    assert prepared(SmoothQuant(), weight, torch.zeros_like(x))[0] is None


def test_extremes_stay_floats() -> None:
    weight, x = outlying()
    x[:, 0], weight[:, 0] = 3e38, 1e-38
    x[:, 1], weight[:, 1] = 1e-40, 3e38
    before, _ = prepared(SmoothQuant(1.0), weight, x)
    assert before is None or bool(before.to_weight(weight).isfinite().all())


def test_powers_of_two() -> None:
    weight, x = outlying()
    plain, _ = prepared(SmoothQuant(), weight, x)
    before, _ = prepared(SmoothQuant(pow2=True), weight, x)
    assert bool((torch.frexp(before.factor).mantissa == 0.5).all())
    ratio = before.factor.double() / plain.factor.double()
    assert bool(((ratio >= 0.5**0.5) & (ratio <= 2**0.5)).all())
    moved = before(x).double() @ before.to_weight(weight).double().T
    assert torch.equal(moved, x.double() @ weight.double().T)  # nothing was rounded


def test_weight_only_has_nothing_to_smooth() -> None:
    weight, x = outlying()
    found = SmoothQuant().prepare(weight, INT8, None, stats_of(x), "layer")
    assert found == (None, ["not smoothed: its input is not quantized"])


def test_a_convolution_has_one_factor_for_each_channel() -> None:
    """Statistics of 3 places of 8 channels: the largest of all places."""
    weight, x = outlying()
    x[:, 5::8] *= 10
    stats = replace(stats_of(x), places=3)
    before, _ = SmoothQuant(0.5).prepare(weight, INT8, parse(TOKEN), stats, "layer")
    a, w = (t.abs().reshape(-1, 8).amax(0) for t in (x, weight))
    assert torch.equal(before.factor, (a.sqrt() / w.sqrt()).reciprocal())


def test_errors() -> None:
    for alpha in (-0.1, 1.5, "much", (), (0.5, 2)):
        with pytest.raises(
            ValueError, match="alpha must be a number from 0 to 1, or a list of them, got"
        ):
            SmoothQuant(alpha)
    weight, x = outlying()
    with pytest.raises(ValueError, match=r"layer: expected statistics of 24 inputs .* found 23"):
        prepared(SmoothQuant(), weight, x[:, 1:])
    with pytest.raises(ValueError, match="layer: expected statistics of"):
        prepared(SmoothQuant(), weight[0], x)


def test_by_name() -> None:
    assert algorithms.transforms("smoothquant").alphas == (0.5,)
    assert algorithms.transforms("smoothquant:0.7").alphas == (0.7,)
    with pytest.raises(ValueError, match="alpha must be a number"):
        algorithms.transforms("smoothquant:much")


def test_balanced() -> None:
    s = torch.tensor([0.0, 2.0, 8.0, 0.5])
    assert balance(s).tolist() == [0, 1, 4, 0.25]
    assert balance(torch.zeros(3)).tolist() == [0, 0, 0]
