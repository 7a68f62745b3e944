# SPDX-License-Identifier: BSD-3-Clause
"""What every weight algorithm and every transform does: a new file is tested by itself."""

import warnings

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.calibration import algorithms
from blockscale.layers.before import Before
from tests.calibration.algorithms.transforms import error, outlying, stats_of

WEIGHTS = algorithms.weight_names()
OF_MODELS = {
    name for name in algorithms.transform_names() if hasattr(algorithms.transforms(name), "learned")
}
TRANSFORMS = [name for name in algorithms.transform_names() if name not in OF_MODELS]
FORMATS = (
    "int4:group8:fp32", "uint4:group8:fp32:asym", "mxfp4", "nvfp4", "int4:channel0:fp16",
    "ternary:group8:fp32", "e2m1:tile4x8:fp32", "int3:tensor:bf16:full",
)  # fmt: skip


def gram_of(k: int) -> torch.Tensor:
    x = torch.randn(200, k) @ torch.randn(k, k)
    return x.T @ x / 200


def quantized(name: str, weight: torch.Tensor, fmt: str, gram: torch.Tensor | None):
    algorithm = algorithms.weights(name)
    assert algorithm is not None and algorithm.name == name
    return algorithm.quantize(weight, bs.parse(fmt), gram, "head")


@pytest.mark.some(8)
@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("fmt", FORMATS)
def test_codes_are_of_the_format_and_the_same_each_time(name: str, fmt: str) -> None:
    weight, gram = torch.randn(12, 24), gram_of(24)
    kept = weight.clone()
    for given in (None, gram):
        q, notes = quantized(name, weight, fmt, given)
        again, _ = quantized(name, weight, fmt, given)
        plain = bs.quantize(weight, fmt)
        assert str(q.format) == str(bs.parse(fmt))
        assert (q.shape, q.packed.shape, q.packed.dtype) == (
            weight.shape, plain.packed.shape, plain.packed.dtype,
        )  # fmt: skip
        scale, expected = q.qparams.scale, plain.qparams.scale
        assert (scale.shape, scale.dtype) == (expected.shape, expected.dtype)
        assert torch.equal(q.packed, again.packed) and torch.equal(scale, again.qparams.scale)
        assert bool(q.dequantize().isfinite().all())
        assert all(isinstance(note, str) for note in notes)
    assert torch.equal(weight, kept)


@pytest.mark.some(5)
@pytest.mark.parametrize("name", WEIGHTS)
def test_zeros_stay_zeros(name: str) -> None:
    for fmt in FORMATS:
        q, _ = quantized(name, torch.zeros(4, 16), fmt, torch.eye(16))
        assert not bool(q.dequantize().any())


@pytest.mark.parametrize("name", WEIGHTS)
def test_what_no_algorithm_can_serve_is_refused_by_the_layer_s_name(name: str) -> None:
    weight, gram = torch.randn(4, 16), torch.eye(16)
    odd = weight.clone()
    odd[1, 2] = torch.nan
    with pytest.raises(ValueError, match=r"head: .*NaN or infinite"):
        quantized(name, odd, FORMATS[0], gram)
    with pytest.raises(ValueError, match=r"head: .*rounds stochastically"):
        quantized(name, weight, f"{FORMATS[0]}:stochastic", gram)
    with pytest.raises(ValueError, match=r"head: expected a weight \[n, k\]"):
        quantized(name, weight[None], FORMATS[0], gram)


@pytest.mark.parametrize(
    "options", [{"weight": n} for n in WEIGHTS] + [{"transform": n} for n in TRANSFORMS], ids=str
)
def test_calibrate_takes_it_and_the_ledger_names_it(options: dict[str, str]) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(24, 8)), outlying()[1]
    with torch.no_grad():
        before = model(x)
    recipe = bs.Recipe("int4:group8:fp32", input="int8_token")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ledger = bs.calibrate(model, [x], recipe, progress=False, **options)
    [entry] = ledger.quantized
    [name] = options.values()
    assert name in entry.details
    with torch.no_grad():
        assert (model(x) - before).square().mean() < 0.1 * before.square().mean()


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("fmt", ["int4:group8:fp32", "mxfp4", "int8_channel"])
def test_no_layer_gets_worse_and_the_product_stays(name: str, fmt: str) -> None:
    transform = algorithms.transforms(name)
    assert transform is not None and transform.name == name
    form, given = bs.parse(fmt), "int8:token:fp32"
    for seed in range(3):
        weight, x = outlying(seed)
        kept = weight.clone(), x.clone()
        before, notes = transform.prepare(weight, form, bs.parse(given), stats_of(x), "head")
        assert notes and all(isinstance(note, str) for note in notes)
        assert torch.equal(weight, kept[0]) and torch.equal(x, kept[1])
        if before is None:
            continue
        assert isinstance(before, Before)
        moved = before(x).double() @ before.to_weight(weight).double().T
        torch.testing.assert_close(moved, x.double() @ weight.double().T, rtol=1e-4, atol=1e-4)
        assert error(before, weight, x, fmt, given) < error(None, weight, x, fmt, given)


@pytest.mark.parametrize("name", sorted(OF_MODELS))
def test_what_rotates_whole_models_says_so(name: str) -> None:
    weight, x = outlying(0)
    transform = algorithms.transforms(name)
    assert transform is not None
    with pytest.raises(
        ValueError, match=r"rotates a whole model \(bs\.calibrate\), not one layer: use 'hadamard'"
    ):
        transform.prepare(weight, bs.parse("mxfp4"), None, stats_of(x), "head")
    model = nn.Sequential(nn.Linear(24, 8))
    old = model[0].weight.clone()
    with pytest.raises(ValueError, match="cannot rotate this model, which was left as it was"):
        bs.calibrate(model, [x], "mxfp4", transform=name, progress=False)
    assert torch.equal(model[0].weight, old)
