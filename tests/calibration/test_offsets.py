# SPDX-License-Identifier: BSD-3-Clause
"""Formats with offsets, flat blocks and float zero points, calibrated: ranges need not hold 0."""

import math

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.calibration.algorithms import weights
from blockscale.calibration.observers import make
from blockscale.core.parse import parse
from tests.support.layer_formats import REFERENCE

pytestmark = pytest.mark.filterwarnings(REFERENCE)
OFFSET = "uint8:tensor:fp32:offset"
OBSERVERS = ("min_max", "moving_average:1", "percentile:100", "mse", "adaptive")


def far(rows: int = 400, seed: int = 0) -> torch.Tensor:
    """Numbers around 9: no range of them holds 0."""
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(seed)) + 9


@pytest.mark.some(3)
@pytest.mark.parametrize("spec", OBSERVERS)
@pytest.mark.parametrize("fmt", [OFFSET, "uint4:channel-1:fp16:offset"])
def test_a_range_is_that_of_what_was_seen(spec: str, fmt: str) -> None:
    observer, x = make(spec, fmt), far()
    x[3, 2], x[4, 1] = math.nan, math.inf
    observer.observe(x)
    low, high, _ = observer.range()
    finite = torch.where(x.isfinite(), x, 9.0)
    assert bool((low >= finite.amin() - 1e-3).all()) and bool((high <= finite.amax() + 1e-3).all())
    assert bool((low > 1).all()) and bool((low < high).all())
    if spec == "min_max":
        expected = bs.quantize(finite, fmt)
        assert torch.equal(observer.qparams().scale, expected.qparams.scale)
        assert torch.equal(observer.qparams().offset, expected.qparams.offset)


@pytest.mark.parametrize("spec", ["min_max", "percentile:99", "mse"])
def test_merged_observers_are_as_if_one_had_seen_all(spec: str) -> None:
    parts = [far(60, seed) for seed in range(3)]
    whole, merged, nothing = make(spec, OFFSET), make(spec, OFFSET), make(spec, OFFSET)
    for part in parts:
        whole.observe(part)
        other = make(spec, OFFSET)
        other.observe(part)
        merged.merge_(other)
    merged.merge_(nothing)
    nothing.merge_(merged)
    for observer in (merged, nothing):
        for mine, theirs in zip(observer.range(), whole.range(), strict=True):
            assert torch.equal(mine, theirs)


def test_a_block_that_saw_nothing_has_the_range_of_nothing() -> None:
    x = far(20)
    x[:, 3] = math.nan
    for spec in ("min_max", "moving_average", "percentile", "mse"):
        observer = make(spec, "uint8:channel-1:fp32:offset")
        observer.observe(x)
        observer.observe(x)
        low, high, _ = observer.range()
        assert low[0, 3] == high[0, 3] == 0
        assert bool((low[0, :3] > 1).all())


def test_a_loaded_state_goes_on() -> None:
    one, other = make("min_max", OFFSET), make("min_max", OFFSET)
    one.observe(far(5))
    other.load_state_dict(one.state_dict())
    one.observe(far(50, 1))
    other.observe(far(50, 1))
    assert torch.equal(other.range().low, one.range().low)


def test_what_observers_refuse() -> None:
    with pytest.raises(ValueError, match=r"entropy.*offset"):
        make("entropy", OFFSET)
    with pytest.raises(ValueError, match="must be supplied"):
        make("min_max", "int8:tensor:e8m0/given")


def test_mse_beats_the_whole_range_with_outliers() -> None:
    x, fmt = far(3000), "uint4:tensor:fp32:offset"
    x[0, 0] = 60.0
    errors = {}
    for spec in ("min_max", "mse"):
        observer = make(spec, fmt)
        observer.observe(x)
        scale, offset = observer.qparams().scale, observer.qparams().offset
        left = bs.fake_quantize(x, fmt, scale, offset=offset)
        errors[spec] = float((left - x).square().mean())
    assert errors["mse"] < 0.5 * errors["min_max"]


ALGORITHMS = ("mse", "hqq", "gptq")
WEIGHTS = (
    "nf4:group64:fp32",
    "uint4:group32:fp16:offset",
    "uint4:group32:(uint6:group8:fp16):offset(fp16)",
    "uint4:group64:fp16:asym(fp16)",
    "nf4:flat64:fp32",
    "nf4:flat256:fp16",
    "int4:group32:fp16:signed",
    "int4:block2x*:fp32",
    "e2m1:group16:e4m3/inv",
    "int4:group32:(int6:group16:fp16)",
)


@pytest.mark.some(8)
@pytest.mark.parametrize("fmt", WEIGHTS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithms_lower_their_error(name: str, fmt: str) -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(6, 128, generator=generator) + 0.3
    x = torch.randn(300, 128, generator=generator) @ torch.randn(128, 128, generator=generator)
    gram = x.double().T @ x.double() / len(x)
    algorithm = weights(name)
    q, _ = algorithm.quantize(weight, parse(fmt), gram, "a layer")
    plain = bs.quantize(weight, fmt)
    assert q.format == parse(fmt)
    assert {p: t.shape for p, t in q.qparams._asdict().items() if t is not None} == {
        p: t.shape for p, t in plain.qparams._asdict().items() if t is not None
    }

    def error(q: bs.QTensor) -> float:
        e = (q.dequantize() - weight).double()
        if name == "hqq":
            return float(e.abs().pow(0.7).sum())
        return float((e @ gram * e).sum()) if name == "gptq" else float(e.square().sum())

    coarse = name == "hqq" and str(q.format.scale) in ("e4m3/inv", "(int6:group16:fp16)")
    assert error(q) < error(plain) or (coarse and error(q) == error(plain))  # no nearer scale


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_algorithms_refuse(name: str) -> None:
    weight, gram = torch.randn(3, 48), torch.eye(48)
    fmt = parse("uint4:group8:fp16:offset(uint6:group2:fp16)")
    with pytest.raises(ValueError, match=r"^a layer: uint4.*scale of their offsets.*absmax"):
        weights(name).quantize(weight, fmt, gram, "a layer")
    with pytest.raises(ValueError, match=r"^a layer: .*given"):
        weights(name).quantize(weight, parse("int8:group8:e8m0/given"), gram, "a layer")


def test_gptq_refuses_blocks_that_end_within_rows() -> None:
    with pytest.raises(
        ValueError,
        match=r"^a layer: nf4:flat64:fp32: its flat blocks end in the middle of rows of 48 .*mse",
    ):
        weights("gptq").quantize(
            torch.randn(4, 48), parse("nf4:flat64:fp32"), torch.eye(48), "a layer"
        )


def test_compare_tells_of_flat_blocks() -> None:
    floats, x = nn.Sequential(nn.Linear(24, 5)), torch.randn(4, 24)
    quantized = nn.Sequential(nn.Linear(24, 5))
    quantized.load_state_dict(floats.state_dict())
    bs.quantize_(quantized, bs.Recipe("nf4:flat10:fp32", input="uint8:token:fp32:offset"))
    [layer] = bs.compare(floats, quantized, [(x,)], progress=False)
    assert layer.weight.sqnr > 10 and layer.weight.worst
