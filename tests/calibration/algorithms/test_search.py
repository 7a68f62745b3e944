# SPDX-License-Identifier: BSD-3-Clause
"""Plain rounding by search: never worse, by its own measure, than what it begins with."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import blockscale as bs
from blockscale.calibration.algorithms.mse import MSE
from blockscale.calibration.algorithms.search import Search
from tests.calibration.algorithms.grams import gram_of
from tests.support import strategies
from tests.support.algorithms_gptq import FORMATS as ALGORITHMS_GPTQ_FORMATS
from tests.support.algorithms_gptq import objective as algorithms_gptq_objective


@pytest.mark.some(4)
@pytest.mark.parametrize("fmt", ALGORITHMS_GPTQ_FORMATS)
def test_every_format(fmt: str) -> None:
    weight, gram = torch.randn(12, 36), gram_of(36)
    q, notes = Search().quantize(weight, bs.parse(fmt), gram, "layer")
    scales, _ = Search(sweeps=0).quantize(weight, bs.parse(fmt), gram, "layer")
    plain = bs.quantize(weight, fmt)
    assert notes == []
    assert algorithms_gptq_objective(q, weight, gram) <= algorithms_gptq_objective(
        plain, weight, gram
    )
    if "toward_zero" not in fmt:
        assert algorithms_gptq_objective(q, weight, gram) < 0.8 * algorithms_gptq_objective(
            scales, weight, gram
        )
    for found, wanted in zip(q.qparams, plain.qparams, strict=True):
        assert (found is None) == (wanted is None)
        assert found is None or (found.shape, found.dtype) == (wanted.shape, wanted.dtype)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:no cpu kernel runs")  # of the reference, too
@given(st.data())
@settings(max_examples=10)
def test_any_format(data: st.DataObject) -> None:
    fmt = bs.parse(data.draw(strategies.spellings(2).filter(strategies.is_searchable)))
    n, k = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 9))
    weight, gram = torch.randn(n, k), gram_of(k, data.draw(st.integers(1, 12)))
    if fmt.rounding == "stochastic":
        with pytest.raises(ValueError, match="rounds stochastically"):
            Search().quantize(weight, fmt, gram, "layer")
        return
    q, _ = Search().quantize(weight, fmt, gram, "layer")
    plain = algorithms_gptq_objective(bs.quantize(weight, fmt), weight, gram)
    assert algorithms_gptq_objective(q, weight, gram) <= plain * (1 + 1e-6) + 1e-30


def test_the_weight_alone() -> None:
    weight, fmt = torch.randn(20, 64), bs.parse("int4:group16:fp32")
    squares, _ = Search("none").quantize(weight, fmt, None, "layer")
    assert not Search("none").needs_gram and Search().needs_gram
    assert torch.equal(squares.packed, MSE().quantize(weight, fmt, None, "layer")[0].packed)
    absolute, _ = Search("none", power=1).quantize(weight, fmt, None, "layer")
    errors = [(q.dequantize() - weight).abs().sum() for q in (squares, absolute)]
    assert errors[1] < errors[0]
    q, notes = Search().quantize(weight, fmt, None, "layer")
    assert torch.equal(q.packed, squares.packed)
    assert notes == ["no data about its inputs: all columns have the same weight"]
    q, notes = Search().quantize(weight, fmt, torch.zeros(64, 64), "layer")
    assert torch.equal(q.packed, squares.packed)
    assert notes == ["all its inputs were 0: all columns have the same weight"]


def test_scales_of_either_sign() -> None:
    """Brute force over steps of both signs: what `signed` could have."""
    weight, fmt = torch.randn(60, 4), bs.parse("int4:group4:fp32:signed")
    q, _ = Search("none").quantize(weight, fmt, None, "layer")
    found = (q.dequantize() - weight).double().square().sum(1).numpy()
    w = weight.double().numpy()
    steps = np.abs(w).max(1, keepdims=True) * np.linspace(1 / 12, 1 / 4, 1500)
    best = np.inf
    for sign in (-1, 1):
        s = (sign * steps)[..., None]
        v = np.clip(np.rint(w[:, None] / s), -8, 7)
        best = np.minimum(best, ((v * s - w[:, None]) ** 2).sum(-1).min(1))
    assert found.sum() <= 1.1 * best.sum()
    assert bool((q.qparams.scale < 0).any()) and bool((q.qparams.scale > 0).any())


def test_flat_blocks() -> None:
    weight, gram = torch.randn(6, 32), gram_of(32)
    flat, _ = Search().quantize(weight, bs.parse("int4:flat8:fp32"), gram, "layer")
    rows, _ = Search().quantize(weight, bs.parse("int4:group8:fp32"), gram, "layer")
    assert torch.equal(flat.packed, rows.packed)
    assert torch.equal(flat.qparams.scale.reshape(6, 4), rows.qparams.scale)
    across = bs.parse("int4:flat12:fp32")
    searched, _ = Search().quantize(weight, across, gram, "layer")
    alone, _ = Search(sweeps=0).quantize(weight, across, gram, "layer")
    assert torch.equal(searched.packed, alone.packed)


@pytest.mark.parametrize(
    "fmt",
    [
        "int4:group8:fp32",
        "nvfp4",
        "uint4:group16:fp16:asym",
        "int4:tile4x8:bf16",
        "int4:flat8:fp32",
    ],
)
def test_weights_side_by_side_have_the_bits_of_each_alone(fmt: str) -> None:
    """Parts of one gram matrix that have unlike numbers of rows, one of another matrix, one
    without."""
    one, other = gram_of(32), gram_of(32)
    weights = [torch.randn(n, 32) * scale for n, scale in ((5, 1), (9, 3), (4, 1), (8, 1))]
    of = [one, one, other, None]
    found = Search().quantize_each(weights, bs.parse(fmt), of, list("abcd"))
    for (q, notes), weight, gram, name in zip(found, weights, of, "abcd", strict=True):
        alone, expected = Search().quantize(weight, bs.parse(fmt), gram, name)
        assert notes == expected and torch.equal(q.packed, alone.packed)
        for part, wanted in zip(q.qparams, alone.qparams, strict=True):
            assert part is wanted is None or torch.equal(part, wanted)
    weights[2][0, 0] = torch.nan
    with pytest.raises(ValueError, match="c: 1 of 128 weights are NaN"):
        Search().quantize_each(weights, bs.parse(fmt), of, list("abcd"))


def test_what_it_refuses() -> None:
    fmt, weight = bs.parse("int4:group8:fp32"), torch.randn(2, 8)
    weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match="head: 1 of 16 weights are NaN or infinite"):
        Search().quantize(weight, fmt, torch.eye(8), "head")
    with pytest.raises(ValueError, match=r"head: expected the Gram matrix \[8, 8\]"):
        Search().quantize(torch.randn(2, 8), fmt, torch.eye(4), "head")
    with pytest.raises(ValueError, match="weighting must be 'none' or 'gram', got 'all'"):
        Search("all")
    with pytest.raises(ValueError, match=r"as \|e\|\^power\) must be > 0, got 0"):
        Search(power=0)
    with pytest.raises(ValueError, match="sweeps must be >= 0, got -1"):
        Search(sweeps=-1)
