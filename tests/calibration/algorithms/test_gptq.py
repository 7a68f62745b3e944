# SPDX-License-Identifier: BSD-3-Clause
"""GPTQ against the textbook, the identity, and its own objective."""

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import blockscale as bs
from blockscale.calibration.algorithms import hessian
from blockscale.calibration.algorithms.block_scales import best_scales, search
from blockscale.calibration.algorithms.gptq import GPTQ
from blockscale.calibration.algorithms.search import Search
from tests.calibration.algorithms.grams import gram_of
from tests.support import strategies
from tests.support.algorithms_gptq import FORMATS, objective


def textbook(weight: Tensor, gram: Tensor, group: int, order: np.ndarray) -> np.ndarray:
    """int4 in groups, absmax: optimal brain quantization in a given order, with explicit inverses.

    Frantar et al. 2022, equations 2 and 3: after each column the inverse of what is left of H.
    """
    w, h = weight.double().numpy().copy(), gram.numpy()
    h = h + 0.01 * np.mean(np.diag(h)) * np.eye(len(h))
    codes, scales = np.zeros(w.shape, dtype=np.int64), {}
    left = list(order)
    while left:
        j, rest = left[0], left[1:]
        inverse = np.linalg.inv(h[np.ix_(left, left)])
        members = [i for i in range(len(h)) if i // group == j // group]
        if j // group not in scales:
            amax = np.abs(w[:, members].astype(np.float32)).max(1)
            scales[j // group] = amax / np.float32(7)
        scale = scales[j // group]
        codes[:, j] = np.clip(np.rint(w[:, j].astype(np.float32) / scale), -7, 7)
        value = codes[:, j].astype(np.float32) * scale
        error = (w[:, j] - value) / inverse[0, 0]
        w[:, rest] -= error[:, None] * inverse[0, 1:]
        left = rest
    return codes


@pytest.mark.some(2)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("act_order", [False, True])
def test_the_textbook(seed: int, act_order: bool) -> None:
    torch.manual_seed(seed)
    weight, gram = torch.randn(9, 44), gram_of(44)
    order = np.argsort(-np.diag(gram.numpy()), kind="stable") if act_order else np.arange(44)
    algorithm = GPTQ("absmax", act_order=act_order, batch=13, sweeps=0)
    q, notes = algorithm.quantize(weight, bs.parse("int4:group8:fp32"), gram, "layer")
    assert notes == []
    assert np.array_equal(q.codes.numpy(), textbook(weight, gram, 8, order))


@pytest.mark.some(4)
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("act_order", [False, True])
def test_uncorrelated_inputs_are_plain_rounding(fmt: str, act_order: bool) -> None:
    """Under a diagonal H nothing makes up for anything."""
    weight, plain = torch.randn(12, 36), torch.rand(36) + 0.1
    q, notes = GPTQ("absmax", act_order=act_order).quantize(
        weight, bs.parse(fmt), torch.diag(plain), "layer"
    )
    expected = bs.quantize(weight, fmt)
    assert notes == []
    assert torch.equal(q.packed, expected.packed)
    for found, wanted in zip(q.qparams, expected.qparams, strict=True):
        assert (found is None and wanted is None) or torch.equal(found, wanted)


@pytest.mark.parametrize("fmt", ["nvfp4", "uint8:group8:e4m3:asym", "int4:group8:e8m0/floor"])
def test_uncorrelated_inputs_and_weights_of_very_different_size(fmt: str) -> None:
    """Inner scales at their smallest, and zero points at the end of their range."""
    weight = -torch.rand(12, 36) * torch.logspace(-7, 2, 12)[:, None]
    q, notes = GPTQ("absmax").quantize(weight, bs.parse(fmt), torch.eye(36), "layer")
    expected = bs.quantize(weight, fmt)
    assert notes == []  # else it is plain rounding anyway
    assert torch.equal(q.packed, expected.packed)
    for found, wanted in zip(q.qparams, expected.qparams, strict=True):
        assert (found is None and wanted is None) or torch.equal(found, wanted)


@pytest.mark.some(8)
@pytest.mark.parametrize("scales", ["absmax", "mse"])
@pytest.mark.parametrize("fmt", FORMATS)
def test_every_format(fmt: str, scales: str) -> None:
    """Codes are what bs.quantize gives for these values and scales, and the error is lower."""
    weight, gram = torch.randn(12, 36), gram_of(36)
    q, notes = GPTQ(scales).quantize(weight, bs.parse(fmt), gram, "layer")
    plain = bs.quantize(weight, fmt)
    assert notes == []
    assert objective(q, weight, gram) < objective(plain, weight, gram)
    again = bs.quantize(q.dequantize(), fmt, q.scale, q.zero_point)
    if "toward_zero" not in fmt and "recip" not in fmt:  # these do not give their own values back
        assert torch.equal(again.packed, q.packed)
    for found, wanted in zip(q.qparams, plain.qparams, strict=True):
        assert (found is None) == (wanted is None)
        assert found is None or (found.shape, found.dtype) == (wanted.shape, wanted.dtype)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:no cpu kernel runs")  # of the reference, too
@given(st.data())
@settings(max_examples=15)
def test_never_above_plain_rounding(data: st.DataObject) -> None:
    fmt = bs.parse(data.draw(strategies.spellings(2).filter(strategies.is_searchable)))
    n, k = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 9))
    rows = data.draw(st.integers(1, 12))  # the gram matrix is singular where rows < k
    weight, gram = torch.randn(n, k), gram_of(k, rows)
    algorithm = GPTQ(data.draw(st.sampled_from(["absmax", "mse"])), batch=3)
    if fmt.rounding == "stochastic":
        with pytest.raises(ValueError, match="rounds stochastically"):
            algorithm.quantize(weight, fmt, gram, "layer")
        return
    q, _ = algorithm.quantize(weight, fmt, gram, "layer")
    plain = objective(bs.quantize(weight, fmt), weight, gram)
    assert objective(q, weight, gram) <= plain * (1 + 1e-9) + 1e-30


def test_plain_rounding_is_kept_where_it_is_better() -> None:
    fmt = bs.parse("int2:tensor:fp32")
    kept = "error feedback did not lower the error: rounded to nearest"
    for seed in range(60):
        torch.manual_seed(seed)
        weight, gram = torch.randn(1, 6), gram_of(6)
        q, notes = GPTQ("absmax").quantize(weight, fmt, gram, "layer")
        if notes == [kept]:
            assert torch.equal(q.packed, bs.quantize(weight, fmt).packed)
            return
    raise AssertionError("no example of it in 60")


@pytest.mark.some(3)
@pytest.mark.parametrize("fmt", ["int4:group8:fp32", "int4:tile4x8:fp32", "nvfp4"])
@pytest.mark.parametrize("act_order", [False, True])
def test_batches_change_nothing(fmt: str, act_order: bool) -> None:
    """Groups may cross the ends of batches."""
    weight, gram = torch.randn(10, 44), gram_of(44)
    found = [
        GPTQ(act_order=act_order, batch=batch).quantize(weight, bs.parse(fmt), gram, "layer")[0]
        for batch in (1, 5, 20, 128)
    ]
    for other in found[1:]:
        assert torch.equal(other.packed, found[0].packed)
        assert torch.equal(other.qparams.scale, found[0].qparams.scale)


def test_static_scales_are_those_of_the_weight() -> None:
    weight, gram, fmt = torch.randn(10, 44), gram_of(44), bs.parse("uint4:group8:fp32:asym")
    static, _ = GPTQ("absmax", static=True).quantize(weight, fmt, gram, "layer")
    moving, _ = GPTQ("absmax").quantize(weight, fmt, gram, "layer")
    plain = bs.quantize(weight, fmt)
    assert torch.equal(static.qparams.scale, plain.qparams.scale)
    assert torch.equal(static.qparams.zero_point, plain.qparams.zero_point)
    assert not torch.equal(moving.qparams.scale, plain.qparams.scale)
    assert objective(static, weight, gram) < objective(plain, weight, gram)


@pytest.mark.parametrize("act_order", [False, True])
def test_scales_weigh_errors_by_what_they_cost(act_order: bool) -> None:
    """1 / [H^-1]_jj of what is left of H when column j is reached (the paper's equation 2)."""
    weight, gram, fmt = torch.randn(10, 44), gram_of(44), bs.parse("int4:group8:fp32")
    h = gram.numpy() + 0.01 * gram.diagonal().mean().item() * np.eye(44)
    left = list(np.argsort(-np.diag(h), kind="stable") if act_order else np.arange(44))
    first, cost = left[0] // 8, np.empty(44)
    while left:
        cost[left[0]] = 1 / np.linalg.inv(h[np.ix_(left, left)])[0, 0]
        left = left[1:]
    expected = best_scales(weight, fmt, torch.from_numpy(cost)).scale
    static, _ = GPTQ(act_order=act_order, static=True, sweeps=0).quantize(
        weight, fmt, gram, "layer"
    )
    assert torch.equal(static.qparams.scale, expected)
    moving, _ = GPTQ(act_order=act_order, sweeps=0).quantize(weight, fmt, gram, "layer")
    assert torch.equal(moving.qparams.scale[:, first], expected[:, first])


def test_inputs_that_are_always_zero() -> None:
    """Their columns are rounded as they are and disturb no other."""
    weight, fmt = torch.randn(6, 32), bs.parse("int4:group4:fp32")
    gram, dead = gram_of(32), [3, 16, 17, 18, 19]
    alive = [i for i in range(32) if i not in dead]
    gram[dead] = 0
    gram[:, dead] = 0
    for damping in (0.01, 0.0):
        q, notes = GPTQ("absmax", damping=damping).quantize(weight, fmt, gram, "layer")
        assert notes == ["5 of 32 inputs were always 0: their columns are rounded to nearest"]
        assert torch.equal(q.codes[:, 16:20], bs.quantize(weight, fmt).codes[:, 16:20])
    q, notes = GPTQ("absmax").quantize(weight, fmt, torch.zeros(32, 32), "layer")
    assert torch.equal(q.packed, bs.quantize(weight, fmt).packed)
    assert "32 of 32 inputs were always 0" in notes[0] and len(alive) == 27


def test_damping_that_is_raised_is_told() -> None:
    """Half of a matrix with a negative eigenvalue is no X^T X, but rounding may make one such."""
    h = torch.tensor([[1.0, 1.5], [1.5, 1.0]], dtype=torch.float64)  # eigenvalues 2.5, -0.5
    _, notes = GPTQ().quantize(torch.randn(3, 2), bs.parse("int4:tensor:fp32"), h, "layer")
    assert notes[0] == "H has no Cholesky factor: damping raised to 1"


def test_nothing_known_of_the_inputs() -> None:
    weight, fmt = torch.randn(6, 32), bs.parse("int4:group8:fp32")
    q, notes = GPTQ("absmax").quantize(weight, fmt, None, "layer")
    assert notes == ["no data about its inputs: every column is rounded by itself"]
    assert torch.equal(q.packed, bs.quantize(weight, fmt).packed)
    q, again = GPTQ("mse").quantize(weight, fmt, None, "layer")
    clipped, _ = GPTQ("mse", sweeps=0).quantize(weight, fmt, torch.eye(32), "layer")
    assert again == notes and torch.equal(q.packed, clipped.packed)


@pytest.mark.slow
def test_sweeps_lower_the_error() -> None:
    for fmt in ("int4:group8:fp32", "int3:tile4x8:fp32", "nvfp4", "uint4:group8:fp32:asym"):
        weight, gram = torch.randn(24, 44), gram_of(44)
        errors = [
            objective(
                GPTQ(sweeps=n, damping=1e-4).quantize(weight, bs.parse(fmt), gram, "layer")[0],
                weight,
                gram,
            )
            for n in (0, 1, 4)
        ]
        assert errors[2] <= errors[1] < errors[0] and errors[2] < 0.95 * errors[0]


def test_the_float_models_inputs() -> None:
    """With the drift, the output is nearer to that of the float model's inputs."""
    wanted = torch.randn(400, 44).double() @ torch.randn(44, 44).double()
    seen = wanted + 0.3 * torch.randn(400, 44).double() @ torch.randn(44, 44).double()
    gram, drift = seen.T @ seen / 400, seen.T @ (wanted - seen) / 400
    weight, fmt = torch.randn(16, 44), bs.parse("int4:group8:fp32")

    def error(q: bs.ops.tensor.QTensor) -> float:
        y = seen @ q.dequantize().double().T - wanted @ weight.double().T
        return float(y.square().sum())

    plain, _ = GPTQ().quantize(weight, fmt, gram, "layer")
    half, _ = GPTQ(asymmetric=True).quantize(weight, fmt, gram, "layer", drift=drift)
    found, notes = GPTQ(asymmetric=1.0).quantize(weight, fmt, gram, "layer", drift=drift)
    assert notes == [] and error(found) < error(half) < 0.97 * error(plain)
    assert error(found) < 0.9 * error(plain)
    assert GPTQ(asymmetric=True).needs_drift and not GPTQ().needs_drift
    same, _ = GPTQ().quantize(weight, fmt, gram, "layer", drift=drift)
    assert torch.equal(same.packed, plain.packed)  # looked at only if it is asked for
    none, notes = GPTQ(asymmetric=True).quantize(weight, fmt, gram, "layer")
    assert torch.equal(none.packed, plain.packed)
    assert len(notes) == 1 and "of the float model were not collected" in notes[0]
    zero = torch.zeros_like(drift)
    still, notes = GPTQ(asymmetric=True).quantize(weight, fmt, gram, "layer", drift=zero)
    assert torch.equal(still.packed, plain.packed) and notes == []
    for bad, text in (
        (drift[:4], r"expected the drift \[44, 44\]"),
        (drift * torch.nan, "NaN or inf"),
    ):
        with pytest.raises(ValueError, match=f"head: .*{text}"):
            GPTQ(asymmetric=True).quantize(weight, fmt, gram, "head", drift=bad)


@pytest.mark.filterwarnings("ignore:no cpu kernel runs")  # of learned tables
def test_learned_tables_keep_their_scales() -> None:
    weight, gram = torch.randn(12, 36), gram_of(36)
    for fmt in ("book3:group8:fp32", "book2:channel0:fp16"):
        plain, (q, notes) = (
            bs.quantize(weight, fmt),
            GPTQ().quantize(weight, bs.parse(fmt), gram, "layer"),
        )
        assert notes == [] and torch.equal(q.qparams.book, plain.qparams.book)
        assert objective(q, weight, gram) < 0.8 * objective(plain, weight, gram)


@pytest.mark.slow
def test_kernels_and_the_reference_choose_the_same() -> None:
    for fmt in ("int4:group8:fp32", "mxfp4", "nf4:group8:fp16", "uint4:group8:fp32:asym"):
        weight, gram = torch.randn(12, 36), gram_of(36)
        found, _ = GPTQ().quantize(weight, bs.parse(fmt), gram, "layer")
        with bs.use("reference"):
            again, _ = GPTQ().quantize(weight, bs.parse(fmt), gram, "layer")
        assert torch.equal(found.packed, again.packed)
        assert torch.equal(found.qparams.scale, again.qparams.scale)


def test_empty() -> None:
    fmt = bs.parse("int4:group8:fp32")
    for shape in ((0, 8), (3, 0)):
        weight = torch.empty(shape)
        q, _ = GPTQ().quantize(weight, fmt, torch.eye(shape[1]), "layer")
        assert q.shape == shape


def test_what_it_refuses() -> None:
    weight, fmt = torch.randn(2, 8), bs.parse("int4:group8:fp32")
    bad = weight.clone()
    bad[0, 0] = torch.inf
    with pytest.raises(ValueError, match="head: 1 of 16 weights are NaN or infinite"):
        GPTQ().quantize(bad, fmt, torch.eye(8), "head")
    with pytest.raises(ValueError, match=r"head: expected the Gram matrix \[8, 8\] .* \(4, 4\)"):
        GPTQ().quantize(weight, fmt, torch.eye(4), "head")
    with pytest.raises(
        ValueError, match="head: the Gram matrix of its inputs holds NaN or infinity"
    ):
        GPTQ().quantize(weight, fmt, torch.full((8, 8), torch.inf), "head")
    with pytest.raises(ValueError, match="scales must be 'absmax' or 'mse', got 'max'"):
        GPTQ("max")
    with pytest.raises(
        ValueError,
        match=r"damping \(a fraction of the Hessian's mean diagonal\) must be >= 0, got -1",
    ):
        GPTQ(damping=-1)
    with pytest.raises(ValueError, match=r"a time\) must be >= 1, got 0"):
        GPTQ(batch=0)
    with pytest.raises(
        ValueError, match="asymmetric must be True, False or a number from 0 to 1, got 2"
    ):
        GPTQ(asymmetric=2)
    with pytest.raises(ValueError, match="sweeps must be >= 0, got -1"):
        GPTQ(sweeps=-1)


SIDE = ["int4:group8:fp32", "nvfp4", "uint3:group16:bf16:asym", "mxfp4", "int4:token:fp32",
        "int4:group12:fp16:offset(fp16)"]  # fmt: skip


@pytest.mark.some(4)
@pytest.mark.parametrize("how", [{}, {"asymmetric": True, "static": True}])
@pytest.mark.parametrize("fmt", SIDE)
def test_side_by_side_each_gets_what_it_gets_alone(fmt: str, how: dict[str, Any]) -> None:
    """To the bit: matrices whose columns have other orders, of which some settle sooner than
    others, one has dead inputs, one an H that must be damped, and one no data at all."""
    count, (n, k) = 5, (24, 44)
    weights = [torch.randn(n, k) * 4.0**e for e in range(count)]
    grams: list[Tensor | None] = [gram_of(k, rows) for rows in (9, 60, 200, 60)]
    grams[2] = torch.diag(torch.rand(k)).double()  # settles at once
    assert grams[3] is not None
    grams[3][5] = grams[3][:, 5] = 0
    drifts = [None if g is None else g * 0.1 * torch.randn(k, k) for g in grams]
    names = [f"expert {e}" for e in range(count)]
    algorithm, form = GPTQ(**how), bs.parse(fmt)
    found = algorithm.quantize_each(weights, form, [*grams, None], names, [*drifts, None])
    for e, (q, notes) in enumerate(found):
        gram, drift = ([*each, None][e] for each in (grams, drifts))
        alone, told = algorithm.quantize(weights[e], form, gram, names[e], drift=drift)
        assert notes == told and q.size == alone.size
        assert torch.equal(q.packed, alone.packed)
        for part, expected in zip(q.qparams, alone.qparams, strict=True):
            assert (part is None and expected is None) or torch.equal(part, expected)


@pytest.mark.some(4)
@pytest.mark.parametrize("how", [{}, {"asymmetric": True, "static": True, "scales": "absmax"}])
@pytest.mark.parametrize("fmt", SIDE)
def test_parts_of_a_weights_rows_get_what_they_get_alone(fmt: str, how: dict[str, Any]) -> None:
    """To the bit: parts of one weight, of other sizes, of which one is all zeros and settles at
    once. The factor of their H is computed once."""
    k, form, algorithm = 44, bs.parse(fmt), GPTQ(**how)
    weights = [torch.randn(n, k) for n in (11, 11, 1, 6)]
    weights[1] = torch.zeros(11, k)
    gram = gram_of(k, 60)
    gram[5] = gram[:, 5] = 0
    drift = gram * 0.1 * torch.randn(k, k)
    with patch.object(hessian, "inverse_factor", wraps=hessian.inverse_factor) as factors:
        found = algorithm.quantize_each(weights, form, [gram] * 4, ["layer"] * 4, [drift] * 4)
    assert factors.call_count == 1
    for weight, (q, notes) in zip(weights, found, strict=True):
        alone, told = algorithm.quantize(weight, form, gram, "layer", drift=drift)
        assert notes == told and torch.equal(q.packed, alone.packed)
        for part, expected in zip(q.qparams, alone.qparams, strict=True):
            assert (part is None and expected is None) or torch.equal(part, expected)


def test_scales_of_several_matrices_are_chosen_in_one_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Eight matrices take as many searches as one whose blocks are chosen one by one; formats whose
    scales span rows, and large matrices, are worked on one by one."""
    calls = 0

    def counted(*args: Any, **how: Any) -> Any:
        nonlocal calls
        calls += 1
        return search(*args, **how)

    monkeypatch.setattr("blockscale.calibration.algorithms.columns.search", counted)
    weights, gram = [torch.randn(6, 32) for _ in range(8)], gram_of(32)
    form = bs.parse("int4:group8:fp32")
    names, none = ["layer"] * 8, [None] * 8
    GPTQ(act_order=False).quantize_each(weights, form, [gram] * 8, names, none)
    assert calls == 4
    assert GPTQ.beside(form, (512, 256)) == 32 and GPTQ.beside(form, (4096, 4096)) == 1
    assert GPTQ.beside(bs.parse("int4:tile4x8:bf16"), (6, 32)) == 1


@pytest.mark.parametrize(
    "algorithm", [GPTQ(), GPTQ("absmax"), Search()], ids=["mse", "absmax", "search"]
)
def test_inputs_that_are_hardly_used_keep_their_weights(algorithm: GPTQ | Search) -> None:
    """Inputs that the calibration data hold a thousandth of, and others much of (neurons of an
    encoder that other words use): without damping, sweeps let their weights make up for all others,
    400 times what rounding changes, and other data had 57,000 times the error of rounding."""
    torch.manual_seed(0)
    n, k, rare = 32, 96, 32
    weight = torch.randn(n, k)
    basis = torch.randn(24, k)
    seen, unseen = (
        torch.randn(rows, 24) @ basis + 0.3 * torch.randn(rows, k) for rows in (120, 400)
    )
    seen[:, :rare] *= 1e-3
    q, _ = algorithm.quantize(weight, bs.parse("int4:group32:fp32"), seen.T @ seen / 120, "layer")
    plain = bs.quantize(weight, "int4:group32:fp32")
    changed = [(each.dequantize() - weight)[:, :rare].norm() for each in (q, plain)]
    assert changed[0] < 1.5 * changed[1]
    errors = [((each.dequantize() - weight) @ unseen.T).square().sum() for each in (q, plain)]
    assert errors[0] < 0.6 * errors[1]
