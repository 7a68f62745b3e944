# SPDX-License-Identifier: BSD-3-Clause
"""Column after column under scales of its own gives what the whole gives under them."""

import numpy as np
import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.calibration.algorithms.block_scales import best_scales, per_block, search
from blockscale.calibration.algorithms.columns import Columns, Graphs
from blockscale.calibration.algorithms.gptq import feed_back
from blockscale.calibration.algorithms.hessian import (
    Factors,
    Inputs,
    backwards_factor,
    inverse_factor,
    without_dead,
)
from tests.calibration.algorithms.grams import gram_of

FORMATS = [
    "int4:group8:fp32", "uint4:group8:fp32:asym", "mxfp4", "nvfp4", "int4:channel1:fp32",
    "int4:tensor:fp16", "int4:tile4x8:bf16", "int4:group4@0:fp32", "uint4:group8:e4m3:asym",
    "ternary:group8:fp32", "int4:token:fp32:full",
]  # fmt: skip


@pytest.mark.some(3)
@pytest.mark.parametrize("fmt", FORMATS)
def test_nothing_fed_back_is_plain_rounding(fmt: str) -> None:
    weight, form = torch.randn(10, 20), bs.parse(fmt)
    plain, columns = bs.quantize(weight, fmt), Columns([weight], form, None)
    columns.choose_all([weight])
    for i in range(0, 20, 7):
        some = torch.arange(i, min(i + 7, 20)).flip(0)  # in any order
        columns.round(0, some, weight.T[some].double())
    values, q = columns.values.T, columns.result()
    assert torch.equal(q.packed, plain.packed) and torch.equal(q.qparams.scale, plain.qparams.scale)
    assert torch.equal(values, plain.dequantize())


@pytest.mark.some(4)
@pytest.mark.parametrize("fmt", FORMATS)
def test_scales_of_least_error_are_those_of_the_search(fmt: str) -> None:
    weight, form = torch.randn(10, 20), bs.parse(fmt)
    importance = torch.rand(20, dtype=torch.float64) + 0.1
    columns = Columns([weight], form, [importance])
    columns.choose_all([weight])
    columns.round(0, slice(None), weight.T.double())
    found = columns.result()
    assert torch.equal(found.qparams.scale, best_scales(weight, form, importance).scale)
    single, _, outer = per_block(weight, form)
    coarse = Columns([weight], form, [importance], spacing=4)
    coarse.choose([(0, 0)], weight[:, columns.block_of == 0])
    own = None if outer is None else outer[:, :1]
    part = weight[:, columns.block_of == 0], single, own, importance[columns.block_of == 0]
    assert torch.equal(coarse.qparams_of([0], 0).scale, search(*part, spacing=4).scale)


@pytest.mark.some(3)
@pytest.mark.parametrize("fmt", [*FORMATS, "int4:group8:fp32:signed", "book3:group8:fp32"])
@pytest.mark.filterwarnings("ignore:no cpu kernel runs")  # of learned tables
def test_scales_that_are_taken_and_changed(fmt: str) -> None:
    weight, form = torch.randn(10, 20), bs.parse(fmt)
    plain, columns = bs.quantize(weight, fmt), Columns([weight], form, None)
    columns.take(plain.qparams)
    assert columns.has_scale == [[True] * len(columns.has_scale[0])]
    columns.round(0, slice(None), weight.T.double())
    assert torch.equal(columns.result().packed, plain.packed)
    if form.scale.dtype == torch.float32:
        doubled = plain.qparams._replace(scale=plain.qparams.scale * 2)
        columns.take(doubled)
        expected = bs.quantize(weight, fmt).codes
        some = columns.columns_of(0)
        assert torch.equal(columns.revalue([0], 0), columns.values[some])
        q = columns.result()
        assert torch.equal(q.codes, expected)
        assert torch.equal(q.dequantize()[:, some], columns.values[some].T)


def test_a_block_is_chosen_when_it_is_asked_for() -> None:
    weight, form = torch.randn(4, 20), bs.parse("int4:group8:fp32")
    columns = Columns([weight], form, None)
    assert columns.block_of.tolist() == [0] * 8 + [1] * 8 + [2] * 4
    columns.choose([(0, 1)], 3 * weight[:, 8:16])
    assert columns.has_scale == [[False, True, False]]
    tripled = bs.quantize(3 * weight[:, 8:16], form)
    columns.choose([(0, 0)], weight[:, :8])
    columns.choose([(0, 2)], weight[:, 16:])
    assert torch.equal(columns.result().qparams.scale[:, 1:2], tripled.qparams.scale)


# Factors of H, and error feedback by itself.


def factored(factor: torch.Tensor) -> Factors:
    return Factors(factor, torch.arange(len(factor)), 0.0, 0.0)


def test_damping_is_raised_until_there_is_a_factor() -> None:
    """Half of a matrix with a negative eigenvalue is no X^T X, but rounding may make one such."""
    h = torch.tensor([[1.0, 1.5], [1.5, 1.0]], dtype=torch.float64)  # eigenvalues 2.5, -0.5
    factor, damping = inverse_factor(h, 0.01, "layer")
    assert damping == 1.0
    inverse = np.linalg.inv((h + torch.eye(2)).numpy())
    np.testing.assert_allclose((factor.T @ factor).numpy(), inverse, rtol=1e-12)
    x = torch.randn(2, 6)  # two samples of six inputs: singular
    _, damping = inverse_factor((x.T @ x).double(), 0.0, "layer")
    assert 0 < damping <= 1e-3
    with pytest.raises(
        ValueError, match="layer: the Gram matrix of its inputs has no Cholesky factor, even with"
    ):
        inverse_factor(torch.full((2, 2), torch.nan).double(), 0.01, "layer")


def test_the_factor_is_that_of_the_inverse() -> None:
    h = gram_of(20)
    factor, damping = inverse_factor(h, 0.02, "layer")
    assert damping == 0.02 and torch.equal(factor, factor.triu())
    damped = (h + 0.02 * h.diagonal().mean() * torch.eye(20, dtype=h.dtype)).numpy()
    inverse = np.linalg.inv(damped)
    np.testing.assert_allclose(factor.numpy(), np.linalg.cholesky(inverse).T, rtol=1e-8, atol=1e-12)
    r, _ = backwards_factor(h, 0.02, "layer")
    assert torch.equal(r, r.triu())
    np.testing.assert_allclose((r @ r.T).numpy(), damped, rtol=1e-12, atol=1e-9)


def test_shifted_weights_are_the_least_squares_solution() -> None:
    wanted, seen = torch.randn(300, 12).double(), torch.randn(300, 12).double()
    weight = torch.randn(12, 5).double()
    h, drift = seen.T @ seen / 300, seen.T @ (wanted - seen) / 300
    best = np.linalg.lstsq(seen.numpy(), (wanted @ weight).numpy(), rcond=None)[0]
    inputs = Inputs(h, 12, "layer")
    found = inputs.shift(drift, 1.0, 0.0).of(weight)
    np.testing.assert_allclose(found.numpy(), best, rtol=1e-9, atol=1e-12)
    assert torch.equal(inputs.shift(torch.zeros_like(h), 1.0, 0.01).of(weight), weight)


def test_dead_inputs_get_the_mean() -> None:
    h = torch.diag(torch.tensor([2.0, 0.0, 4.0])).double()
    alive, count = without_dead(h)
    assert count == 1 and alive.diagonal().tolist() == [2.0, 3.0, 4.0]
    same, count = without_dead(alive)
    assert count == 0 and same is alive
    alive, count = without_dead(torch.zeros(2, 2).double())
    assert count == 2 and alive.diagonal().tolist() == [1.0, 1.0]


def test_one_column_is_rounded_to_nearest() -> None:
    weight, fmt = torch.randn(9, 1), bs.parse("int4:channel0:fp32")
    columns = Columns([weight], fmt, None)
    one = torch.ones(1, 1).double()
    feed_back(columns, [weight.T.double()], [factored(one)], 64)
    assert torch.equal(columns.result().packed, bs.quantize(weight, fmt).packed)


def test_two_columns_by_hand() -> None:
    """The second column makes up for U_01 / U_00 of the first one's error."""
    weight, fmt = torch.tensor([[2.4, 1.3]]), bs.parse("int4:group1:fp32")
    columns = Columns([weight], fmt, None)
    columns.take(bs.quantize(weight, fmt).qparams._replace(scale=torch.ones(1, 2)))
    factor = torch.tensor([[2.0, -1.0], [0.0, 1.0]]).double()
    feed_back(columns, [weight.T.double()], [factored(factor)], 64)
    assert columns.result().codes.tolist() == [[2, 2]]  # 1.3 + 0.4 / 2 = 1.5, to even
    columns = Columns([weight], fmt, None)
    columns.take(bs.quantize(weight, fmt).qparams._replace(scale=torch.ones(1, 2)))
    feed_back(columns, [weight.T.double()], [factored(factor.abs())], 64)
    assert columns.result().codes.tolist() == [[2, 1]]


def test_without_cuda_each_step_runs() -> None:
    """What a GPU replays is tested there (tests/gpu/test_calibrate.py)."""
    graphs, calls = Graphs(torch.device("cpu")), []

    def step(x: Tensor, y: Tensor) -> tuple[Tensor, None]:
        calls.append(x)
        return x + y, None

    for i in range(12):
        x = torch.full((3,), float(i))
        result, nothing = graphs.run("add", 12, step, [x, x])
        assert torch.equal(result, 2 * x) and nothing is None
    assert len(calls) == 12
