# SPDX-License-Identifier: BSD-3-Clause
"""Plain rounding by search: never worse, by its own measure, than what it begins with."""

from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import blockscale as bs
from blockscale.calibration.algorithms.columns import Columns, descend
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


# Coordinate descent: no sweep raises the error, and small matrices come near the very best.

FORMATS = [
    "int4:group8:fp32", "int3:tensor:fp32", "int3:channel0:fp16", "int4:channel1:bf16",
    "uint4:group8:fp32:asym", "mxfp4", "nvfp4", "int4:group5@0:fp32", "int4:tile4x8:fp32:full",
    "int4:group8:fp32:signed", "nf4:group8:fp32", "uint4:group8:fp32:asym(fp16)",
    "int4:group48:fp32", "int4:group8:fp32:offset", "binary:group8:fp32",
    "ternary:token:fp32", "int4:group8:fp32:recip",
]  # fmt: skip


def begun(weight: Tensor, fmt: str) -> Columns:
    """Columns after plain rounding."""
    columns = Columns([weight], bs.parse(fmt), None)
    columns.take(bs.quantize(weight, fmt).qparams)
    columns.round(0, slice(None), weight.T.double())
    return columns


def objective(values: Tensor, target: Tensor, h: Tensor) -> float:
    away = (target - values).numpy()
    return float(np.trace(away.T @ h.numpy() @ away))


@pytest.mark.some(2)
@pytest.mark.parametrize("fmt", FORMATS)
def test_no_sweep_raises_the_error(fmt: str) -> None:
    weight, h = torch.randn(12, 100), gram_of(100)
    target = weight.T.double().contiguous()
    columns = begun(weight, fmt)
    errors = [objective(columns.values, target, h)]
    for _ in range(3):
        (rest,) = descend(columns, [target], [h], 1)
        errors.append(objective(columns.values, target, h))
        torch.testing.assert_close(rest, h @ (target - columns.values), rtol=1e-6, atol=1e-6)
    slack = 1 + 1e-6  # columns are rounded as float32
    assert all(after <= before * slack for before, after in pairwise(errors))
    assert errors[-1] < 0.75 * errors[0]
    q = columns.finished()
    assert torch.equal(q.dequantize().T, columns.values)


def test_codes_alone() -> None:
    weight, h = torch.randn(12, 40), gram_of(40)
    columns, plain = begun(weight, "int4:group8:fp32"), bs.quantize(weight, "int4:group8:fp32")
    descend(columns, [weight.T.double()], [h], 2, fit=False)
    q = columns.finished()
    assert torch.equal(q.qparams.scale, plain.qparams.scale)
    assert not torch.equal(q.packed, plain.packed)


def test_brute_force_over_all_codes() -> None:
    """Of 3^6 codes under one scale, descent ends where no single code can be better; often best."""
    fmt, best = "int2:token:fp32", 0
    codes = np.array(list(product((-1, 0, 1), repeat=6)), dtype=np.float64)
    for seed in range(20):
        torch.manual_seed(seed)
        weight, h = torch.randn(1, 6), gram_of(6, power=0.3)
        columns = begun(weight, fmt)
        descend(columns, [weight.T.double()], [h], 20, fit=False)
        step = float(columns.qparams_of([0], 0).scale)
        away = weight.double().numpy() - codes * step
        every = np.einsum("ij,jk,ik->i", away, h.numpy(), away)
        found = objective(columns.values, weight.T.double(), h)
        assert found >= every.min() * (1 - 1e-9)
        mine = columns.finished().codes.numpy().astype(np.float64)
        near = (codes != mine).sum(1) <= 1
        assert found <= every[near].min() * (1 + 1e-6)
        best += found <= every.min() * (1 + 1e-6)
    assert best >= 8


def test_the_best_step_of_a_block_is_found() -> None:
    """For codes that stay, least squares over the step."""
    weight, h = torch.randn(1, 6), gram_of(6)
    columns = begun(weight, "int8:token:fp32")
    columns.take(columns.qparams_of([0], 0)._replace(scale=columns.qparams_of([0], 0).scale * 1.01))
    columns.revalue([0], 0)
    codes = columns.finished().codes.double().numpy()[0]
    wanted = codes @ h.numpy() @ weight[0].double().numpy() / (codes @ h.numpy() @ codes)
    descend(columns, [weight.T.double()], [h], 1)
    assert np.isclose(float(columns.qparams_of([0], 0).scale), wanted, rtol=1e-6)


def test_one_column_and_zeros() -> None:
    for weight in (torch.randn(7, 1), torch.zeros(3, 16), torch.empty(0, 8)):
        plain = bs.quantize(weight, "int4:channel1:fp32")
        columns = begun(weight, "int4:channel1:fp32")
        h = torch.eye(weight.shape[1]).double()
        descend(columns, [weight.T.double()], [h], 3, fit=False)
        assert torch.equal(columns.finished().packed, plain.packed)
        descend(columns, [weight.T.double()], [h], 3)
        assert bool(columns.finished().dequantize().isfinite().all())


def test_rounding_one_way_is_left_as_it_is() -> None:
    weight, h = torch.randn(4, 16), gram_of(16)
    columns = begun(weight, "int4:group8:fp32:down")
    descend(columns, [weight.T.double()], [h], 3)
    assert torch.equal(
        columns.finished().packed, bs.quantize(weight, "int4:group8:fp32:down").packed
    )
