# SPDX-License-Identifier: BSD-3-Clause
"""Coordinate descent: no sweep raises the error, and small matrices come near the very best."""

from itertools import pairwise, product

import numpy as np
import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.calibration.algorithms.columns import Columns
from blockscale.calibration.algorithms.descent import descend
from tests.calibration.algorithms.grams import gram_of

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


@pytest.mark.some(4)
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
    q = columns.result()
    assert torch.equal(q.dequantize().T, columns.values)


def test_codes_alone() -> None:
    weight, h = torch.randn(12, 40), gram_of(40)
    columns, plain = begun(weight, "int4:group8:fp32"), bs.quantize(weight, "int4:group8:fp32")
    descend(columns, [weight.T.double()], [h], 2, fit=False)
    q = columns.result()
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
        mine = columns.result().codes.numpy().astype(np.float64)
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
    codes = columns.result().codes.double().numpy()[0]
    wanted = codes @ h.numpy() @ weight[0].double().numpy() / (codes @ h.numpy() @ codes)
    descend(columns, [weight.T.double()], [h], 1)
    assert np.isclose(float(columns.qparams_of([0], 0).scale), wanted, rtol=1e-6)


def test_one_column_and_zeros() -> None:
    for weight in (torch.randn(7, 1), torch.zeros(3, 16), torch.empty(0, 8)):
        plain = bs.quantize(weight, "int4:channel1:fp32")
        columns = begun(weight, "int4:channel1:fp32")
        h = torch.eye(weight.shape[1]).double()
        descend(columns, [weight.T.double()], [h], 3, fit=False)
        assert torch.equal(columns.result().packed, plain.packed)
        descend(columns, [weight.T.double()], [h], 3)
        assert bool(columns.result().dequantize().isfinite().all())


def test_rounding_one_way_is_left_as_it_is() -> None:
    weight, h = torch.randn(4, 16), gram_of(16)
    columns = begun(weight, "int4:group8:fp32:down")
    descend(columns, [weight.T.double()], [h], 3)
    assert torch.equal(columns.result().packed, bs.quantize(weight, "int4:group8:fp32:down").packed)


@pytest.mark.parametrize("fmt", ["int4:channel0:fp32", "int4:group8:fp32"])
def test_damping_leaves_h_as_it_is(fmt: str) -> None:
    """Where one block has all columns, what is damped was h itself, and not a copy of its part."""
    weight, h = torch.randn(12, 40), gram_of(40)
    before, columns = h.clone(), begun(weight, fmt)
    target = weight.T.double()
    (rest,) = descend(columns, [target], [h], 2, damping=[0.5])
    assert torch.equal(h, before)
    torch.testing.assert_close(rest, before @ (target - columns.values), rtol=1e-6, atol=1e-6)
