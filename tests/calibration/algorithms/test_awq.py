# SPDX-License-Identifier: BSD-3-Clause
"""AWQ takes the best of its grid by brute force, through any format, and makes no layer worse."""

import pytest
import torch

from blockscale.calibration import algorithms
from blockscale.calibration.algorithms.awq import AWQ
from blockscale.core.parse import parse
from blockscale.layers.before import Scale
from tests.calibration.algorithms.transforms import error, outlying, stats_of

FORMATS = [
    ("int4:group8:fp32", None), ("uint4:group8:fp16:asym", None), ("mxfp4", None),
    ("nvfp4", None), ("ternary:token:fp32", None), ("int8:tensor:pow2/ceil", "int8"),
    ("int4:channel0:fp32:stochastic", "int8_token"), ("int4:tile4x8:fp32", "mxfp8"),
]  # fmt: skip


def prepared(transform: AWQ, weight, x, fmt="int4:group8:fp32", given=None):
    form = None if given is None else parse(given)
    return transform.prepare(weight, parse(fmt), form, stats_of(x), "layer")


@pytest.mark.parametrize("grid", [2, 7])
def test_the_best_of_the_grid(grid: int) -> None:
    """Each candidate as the paper and AutoAWQ spell it, measured by another route."""
    chosen = set()
    for seed in range(6):
        weight, x = outlying(seed)
        fmt = "int3:group8:fp32"
        a, w = x.abs().double().mean(0), weight.abs().double().mean(0)
        errors = {"": error(None, weight, x, fmt, None)}
        for i in range(grid):
            for kind, s in (
                ("alpha", a ** (i / grid)),
                ("duo", a ** (i / grid) / w ** (1 - i / grid)),
            ):
                s = s / (s.max() * s.min()).sqrt()
                scale = Scale((1 / s).float())
                errors[f"{kind} {i / grid:g}"] = error(scale, weight, x, fmt, None)
        best = min(errors, key=errors.__getitem__)
        before, told = prepared(AWQ(grid), weight, x, fmt)
        assert error(before, weight, x, fmt, None) == pytest.approx(errors[best], rel=1e-4)
        assert told[0].replace("duo alpha", "duo").startswith(best)
        chosen.add(best)
    assert len(chosen) > 1


@pytest.mark.parametrize(("fmt", "given"), FORMATS, ids=str)
def test_no_layer_gets_worse(fmt: str, given: str | None) -> None:
    gains = 0
    plain = [each and each.removesuffix(":stochastic") for each in (fmt, given)]
    for seed in range(4):
        weight, x = outlying(seed)
        before, told = prepared(AWQ(6), weight, x, fmt, given)
        found, without = (error(each, weight, x, *plain) for each in (before, None))
        assert found <= without
        assert (before is None) == told[0].startswith("not transformed")
        gains += found < 0.8 * without
    assert gains > 1


def test_features_that_are_zero_are_left_alone() -> None:
    weight, x = outlying()
    x[:, 3], weight[:, 5] = 0, 0
    before, _ = prepared(AWQ(), weight, x)
    assert before.factor[[3, 5]].tolist() == [1, 1]
    for each in (torch.zeros_like(weight), torch.zeros_like(x)):
        pair = (each, x) if each.shape == weight.shape else (weight, each)
        assert prepared(AWQ(), *pair) == (None, ["not transformed: its output has no error"])


def test_powers_of_two() -> None:
    weight, x = outlying()
    before, _ = prepared(AWQ(pow2=True), weight, x)
    assert bool((torch.frexp(before.factor).mantissa == 0.5).all())
    assert before.factor.unique().numel() > 1


def test_it_sees_the_format() -> None:
    """Under one scale for each feature, scaling features changes nothing."""
    weight, x = outlying()
    before, told = prepared(AWQ(pow2=True), weight, x, "int8:channel1:pow2/ceil")
    assert before is None
    assert told == ["not transformed: the error of its output would be 1 times"]


def test_errors_and_names() -> None:
    for grid in (1, 0, -3, 2.5, "many"):
        with pytest.raises(ValueError, match="grid must be an integer >= 2, got"):
            AWQ(grid)
    assert (algorithms.transforms("awq").grid, algorithms.transforms("awq:10").grid) == (20, 10)
    weight, x = outlying()
    with pytest.raises(ValueError, match="layer: expected statistics of 24 inputs"):
        prepared(AWQ(), weight, x[:, 1:])


def test_weights_keep_their_size() -> None:
    """The paper's code divides s by the geometric mean of its extremes: scales stay storable."""
    weight, x = outlying()
    before, _ = prepared(AWQ(), weight, x * 2.0**20)
    s = 1 / before.factor.double()
    assert float(s.max() * s.min()) == pytest.approx(1, rel=1e-6)
    same, _ = prepared(AWQ(), weight, x)
    torch.testing.assert_close(before.factor, same.factor, rtol=1e-5, atol=0)
