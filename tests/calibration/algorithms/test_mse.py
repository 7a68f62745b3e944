# SPDX-License-Identifier: BSD-3-Clause
"""The scales of least squared error: brute force finds none better, and no block gets worse."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import blockscale as bs
from blockscale.calibration.algorithms import block_scales
from blockscale.calibration.algorithms.hessian import importance_of
from blockscale.calibration.algorithms.mse import MSE
from blockscale.core import reference
from blockscale.core.reference import QParams
from tests.support import strategies
from tests.support.algorithms_mse import FORMATS


def errors(x: torch.Tensor, q: bs.ops.tensor.QTensor) -> np.ndarray:
    """The squared error of each block, by numpy in float64, one block after another."""
    difference = (x.double() - q.dequantize().double()).numpy() ** 2
    rows, columns = (
        np.arange(n) // (size or n)
        for n, size in zip(x.shape, q.format.block.sizes_for(2), strict=True)
    )
    found = np.zeros(q.qparams.scale.shape)
    np.add.at(found, (rows[:, None], columns[None]), difference)
    return found


@pytest.mark.some(3)
@pytest.mark.parametrize("fmt", FORMATS)
def test_no_block_gets_worse_and_the_whole_gets_better(fmt: str) -> None:
    x = torch.randn(12, 36) * torch.logspace(-2, 2, 12)[:, None]
    plain, (best, notes) = bs.quantize(x, fmt), MSE().quantize(x, bs.parse(fmt), None, "layer")
    before, after = errors(x, plain), errors(x, best)
    assert notes == []
    assert (after <= before * (1 + 1e-12)).all()
    # the mean of binary is the best already (XNOR-Net, section 3.1), and int8 hardly clips
    if fmt not in ("binary:group8:fp32", "int8:group16:e8m0/floor"):
        assert after.sum() < before.sum()
    assert str(best.format) == str(bs.parse(fmt))
    again = bs.quantize(x, fmt, best.scale, best.zero_point)
    assert torch.equal(again.packed, best.packed)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:no cpu kernel runs")  # of the reference, too
@given(st.data())
@settings(max_examples=15)
def test_any_format_and_awkward_numbers(data: st.DataObject) -> None:
    fmt = bs.parse(data.draw(strategies.spellings(2).filter(strategies.is_searchable)))
    x = torch.randn(5, 7) * 10.0 ** data.draw(st.integers(-40, 38))
    x = torch.where(x.isfinite(), x, 0.0)
    if fmt.rounding == "stochastic":
        with pytest.raises(ValueError, match="rounds stochastically"):
            MSE().quantize(x, fmt, None, "layer")
        return
    best, _ = MSE().quantize(x, fmt, None, "layer")
    assert (errors(x, best) <= errors(x, bs.quantize(x, fmt)) * (1 + 1e-12)).all()


@pytest.mark.parametrize("fmt", ["int4:group4:fp32", "int3:group4:fp32", "e2m1:group4:fp32"])
def test_brute_force_over_scales(fmt: str) -> None:
    """Every step from amax / 40 to amax on a fine grid, each then fitted to its codes."""
    x = torch.randn(60, 4)
    found = errors(x, MSE().quantize(x, bs.parse(fmt), None, "layer")[0])[:, 0]
    element = bs.parse(fmt).element
    values = np.unique([v for v in _values(element) if np.isfinite(v)])
    middles = (values[1:] + values[:-1]) / 2
    w = x.double().numpy()
    steps = np.abs(w).max(1, keepdims=True) * np.linspace(1 / 40, 1, 4000)
    v = values[np.searchsorted(middles, w[:, None] / steps[..., None])]
    fitted = (w[:, None] * v).sum(-1) / np.maximum((v * v).sum(-1), 1e-30)
    best = ((w[:, None] - fitted[..., None] * v) ** 2).sum(-1).min(1)
    assert (found >= best * (1 - 1e-5)).all()
    assert np.isclose(found, best, rtol=1e-4).mean() >= 0.6  # most blocks have the very best
    assert found.sum() <= 1.03 * best.sum()


def _values(element: object) -> list[float]:
    if hasattr(element, "values"):
        return element.values()
    low, high = element.limits(False)  # type: ignore[attr-defined]
    return list(np.arange(low, high + 1))


@pytest.mark.parametrize(
    "fmt", ["int4:group8:e8m0/floor", "mxfp4", "e2m3:group8:e8m0/tosa", "mxint8"]
)
def test_brute_force_over_all_bytes(fmt: str) -> None:
    """A power-of-two scale is the very best of all 255."""
    form = bs.parse(fmt)
    x = torch.randn(4, 40) * torch.tensor([1e-3, 1.0, 70.0, 1e9])[:, None]
    x[0, 3] = 5.0  # an outlier
    found = errors(x, MSE().quantize(x, form, None, "layer")[0])
    shape = found.shape
    every = [
        errors(x, bs.quantize(x, form, torch.full(shape, byte, dtype=torch.uint8)))
        for byte in range(255)
    ]
    assert np.array_equal(found, np.min(every, axis=0))


def test_brute_force_over_inner_codes() -> None:
    """NVFP4 under its outer scale: never far from the best of all 126 e4m3 codes."""
    x = torch.randn(16, 32)
    form = bs.parse("nvfp4")
    outer = reference.choose_qparams(x, form).outer
    found = errors(x, MSE().quantize(x, form, None, "layer")[0])
    every = []
    for code in range(8, 127):
        stored = torch.full(found.shape, code, dtype=torch.uint8)
        every.append(errors(x, block_scales.quantized(x, QParams(stored, outer), form)))
    best = np.min(every, axis=0)
    assert (found >= best).all()
    assert np.isclose(found, best, rtol=1e-12).mean() >= 0.95


@pytest.mark.parametrize("fmt", ["uint4:group6:fp32:asym", "int3:group6:fp32:asym"])
def test_brute_force_with_zero_points(fmt: str) -> None:
    form = bs.parse(fmt)
    x = torch.randn(30, 6) + 0.5
    found = errors(x, MSE().quantize(x, form, None, "layer")[0])[:, 0]
    low, high = (int(end) for end in form.element.limits(True))
    w = x.double().numpy()[:, None]
    span = (np.maximum(w.max(-1), 0) - np.minimum(w.min(-1), 0))[..., None]
    steps = span / (high - low) * np.linspace(0.3, 1.3, 1500)[None, :, None]
    best = np.full(len(x), np.inf)
    for zero in range(low, high + 1):
        v = np.clip(np.rint(w / steps) + zero, low, high) - zero
        best = np.minimum(best, ((w - steps * v) ** 2).sum(-1).min(-1))
    assert found.sum() <= 1.2 * best.sum()


def test_the_gram_matrix_weighs() -> None:
    x = torch.randn(32, 64)
    scales = torch.logspace(-2, 1, 64)
    gram = torch.diag(scales.square()).double()
    form = bs.parse("int3:group16:fp32")
    plain, weighted = (MSE(w).quantize(x, form, gram, "layer")[0] for w in ("none", "gram"))
    of_output = [((q.dequantize() - x) * scales).square().sum() for q in (plain, weighted)]
    assert of_output[1] < 0.9 * of_output[0]
    flat, notes = MSE("gram").quantize(x, form, torch.eye(64), "layer")
    assert torch.equal(flat.codes, plain.codes) and notes == []
    same, notes = MSE("gram").quantize(x, form, None, "layer")
    assert torch.equal(same.codes, plain.codes)
    assert notes == ["no data about its inputs: all columns have the same weight"]
    some = torch.diag(torch.tensor([0.0, 4.0, 9.0]))  # an input that was always 0 counts little
    assert importance_of(some, 3, "layer")[0].tolist() == [4.0, 4.0, 9.0]
    same, notes = MSE("gram").quantize(x, form, torch.zeros(64, 64), "layer")
    assert torch.equal(same.codes, plain.codes)
    assert notes == ["all its inputs were 0: all columns have the same weight"]


def test_weighted_errors_and_steps_are_the_formulas() -> None:
    x, form, counts = torch.randn(6, 8), bs.parse("int3:token:fp32"), torch.rand(8).double() + 0.1
    chosen = reference.choose_qparams(x, form)
    v = bs.quantize(x, form).codes.double().numpy()
    w, c, step = x.double().numpy(), counts.numpy(), chosen.scale.double().numpy()
    error = block_scales.Errors(x, form, counts).of(chosen).numpy()
    np.testing.assert_allclose(error[:, 0], ((w - v * step) ** 2 * c).sum(1), rtol=1e-5)
    fitted = block_scales._polish(x, chosen, form, counts).scale.numpy()[:, 0]
    np.testing.assert_allclose(fitted, (w * v * c).sum(1) / (v * v * c).sum(1), rtol=1e-6)


def test_zeros_empty_and_one() -> None:
    form = bs.parse("int4:group8:fp32")
    for x in (torch.zeros(3, 16), torch.empty(0, 8), torch.empty(3, 0), torch.ones(1, 1)):
        q, _ = MSE().quantize(x, form, None, "layer")
        assert torch.equal(q.dequantize(), bs.quantize(x, form).dequantize())


def test_halves_are_widened() -> None:
    x = torch.randn(4, 32).bfloat16()
    form = bs.parse("int4:group8:fp32")
    assert torch.equal(
        MSE().quantize(x, form, None, "a")[0].packed,
        MSE().quantize(x.float(), form, None, "a")[0].packed,
    )


def test_what_it_refuses() -> None:
    form, x = bs.parse("int4:group8:fp32"), torch.randn(2, 8)
    with pytest.raises(
        ValueError, match=r"head: expected a weight \[n, k\] as it is stored, found"
    ):
        MSE().quantize(torch.randn(8), form, None, "head")
    with pytest.raises(ValueError, match="head: 1 of 16 weights are NaN or infinite: repair them"):
        MSE().quantize(_with_nan(x), form, None, "head")
    with pytest.raises(ValueError, match=r"head: expected the Gram matrix \[8, 8\]"):
        MSE("gram").quantize(x, form, torch.eye(4), "head")
    with pytest.raises(ValueError, match="head: the Gram matrix of its inputs holds NaN"):
        MSE("gram").quantize(x, form, torch.full((8, 8), torch.nan), "head")
    with pytest.raises(
        ValueError,
        match=r"head: the Gram matrix of its inputs has a negative diagonal",
    ):
        MSE("gram").quantize(x, form, -torch.eye(8), "head")
    with pytest.raises(ValueError, match=r"head: the Gram matrix .* is not symmetric"):
        MSE("gram").quantize(x, form, torch.eye(8) + torch.ones(8, 8).triu(1), "head")
    with pytest.raises(TypeError, match="float64: convert it first"):
        MSE().quantize(x.double(), form, None, "head")


def _with_nan(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[1, 3] = torch.nan
    return x


def test_brute_force_over_bytes_and_zero_points() -> None:
    """All bytes near the range's own with all four zero points: seldom is another better."""
    x, form = torch.randn(64, 8) ** 3, bs.parse("uint2:group8:e8m0/floor:asym")
    found = errors(x, MSE().quantize(x, form, None, "layer")[0])
    every = [
        errors(
            x,
            bs.quantize(
                x,
                form,
                torch.full((64, 1), byte, dtype=torch.uint8),
                torch.full((64, 1), zero, dtype=torch.int32),
            ),
        )
        for byte in range(115, 140)
        for zero in range(4)
    ]
    best = np.min(every, axis=0)
    assert (found >= best).all()
    assert (found == best).mean() >= 0.86
    assert found.sum() <= 1.05 * best.sum()


@pytest.mark.parametrize(
    "fmt", ["int4:group8:fp16", "nvfp4", "uint3:group12:bf16:asym", "int4:group12:fp32:signed"]
)
def test_candidates_in_one_call_are_those_one_by_one(
    fmt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit, also where two are equally good: zeros and single values make many ties."""
    x = torch.randn(20, 36)
    x[:4], x[4:8, ::3] = 0.0, 0.25
    counts = torch.rand(36, dtype=torch.float64)
    calls, choose_scales = 0, block_scales.choose_scales

    def counted(*args: Any) -> QParams:
        nonlocal calls
        calls += 1
        return choose_scales(*args)

    monkeypatch.setattr(block_scales, "choose_scales", counted)
    found = block_scales.best_scales(x, bs.parse(fmt), counts)
    together, calls = calls, 0
    monkeypatch.setattr(block_scales, "_AT_ONCE", 1)
    expected = block_scales.best_scales(x, bs.parse(fmt), counts)
    # beside the plain ones
    assert (together, calls) == (2, 1 + len(block_scales.factors(bs.parse(fmt))))
    for part, wanted in zip(found, expected, strict=True):
        assert (part is None and wanted is None) or torch.equal(part, wanted)
