# SPDX-License-Identifier: BSD-3-Clause
"""Parameters by name, and what they are stored as."""

import numpy as np
import pytest
import torch

import blockscale as bs
from blockscale.selection.system.params import (
    FORMATS,
    CalibrationStatistics,
    QuantizedMemoryLayout,
    calibrated,
    recommended_method,
)

Params = bs.QuantizationParams


def test_constructors():
    found = {
        Params.int8_symmetric(): "int8:tensor:fp32",
        Params.uint8_asymmetric(): "uint8:tensor:fp32:asym",
        Params.int4_symmetric(): "int4:tensor:fp32",
        Params.int8_channel_wise(): "int8:channel0:fp32",
        Params.int8_channel_wise(-1): "int8:channel-1:fp32",
        Params.int4_block_wise(): "int4:group128:fp32",
        Params.of("mxfp4"): "e2m1:group32:e8m0/floor",
    }
    assert all(str(params.format) == spelling for params, spelling in found.items())
    one = Params.int8_symmetric()
    assert Params.of(one) is one


def test_they_quantize_as_bs_quantize_does():
    x = torch.randn(4, 64)
    q = Params.of("mxfp4").quantize(x)
    assert torch.equal(q.packed, bs.quantize(x, "mxfp4").packed)
    given = Params(bs.parse("int8"), torch.tensor([[0.5]])).quantize(x)
    assert torch.equal(given.dequantize(), bs.quantize(x, "int8", torch.tensor(0.5)).dequantize())


@pytest.mark.parametrize("fmt", ["mxfp4", "nvfp4", "uint4", "int5:group7:fp16", "int16", "nf4"])
def test_a_layout_is_what_is_stored(fmt):
    q = bs.quantize(torch.randn(3, 5, 70), fmt)
    layout = Params.of(fmt).layout((3, 5, 70))
    stored = [q.packed, *(part for part in q.qparams if part is not None)]
    assert list(layout.parts.values()) == [(each.dtype, tuple(each.shape)) for each in stored]
    assert layout.bytes == q.nbytes
    assert layout.bits == 8 * q.nbytes / (3 * 5 * 70)
    assert (
        QuantizedMemoryLayout.of(bs.parse(fmt), (0, 70)).bits
        == 8 * layout.of(bs.parse(fmt), (0, 70)).bytes
    )


def test_the_least_error_of_so_many_bits():
    torch.manual_seed(0)
    x = torch.randn(16, 256) * torch.logspace(-2, 2, 16)[:, None]
    for bits, names in FORMATS.items():
        found = bs.create_optimal_params(x, bits)
        errors = {n: float((bs.quantize(x, n).dequantize() - x).square().sum()) for n in names}
        assert found.format == bs.parse(min(errors, key=errors.get))
        assert found.format.bits == bits
        fast = bs.create_optimal_params(x, bits, accuracy_priority=False)
        assert fast.format == bs.parse(names[0])
    with pytest.raises(ValueError, match=r"unsupported number of bits 5; choose from \[2, 3, 4"):
        bs.create_optimal_params(x, 5)


def test_a_named_format_has_parameters():
    for name in ("int8", "mxfp4", "nvfp4", "int4"):
        assert bs.create_optimal_params(name, True).format == bs.parse(name)
    assert bs.create_optimal_params("int4", False).format == bs.parse("int4:tensor:fp32")
    assert bs.create_optimal_params("uint4:group32:fp16:asym", False).format == bs.parse(
        "uint4:tensor:fp32:asym"
    )
    with pytest.raises(ValueError, match="unsupported number of bits"):
        bs.create_optimal_params(torch.ones(4), True)


# Statistics against numpy; methods against each other on the samples.


def samples():
    torch.manual_seed(0)
    found = [torch.randn(32, 16), torch.randn(8, 16)]
    found[0][0, 0] = 40.0
    return found


def test_statistics():
    own = [*samples(), torch.tensor([float("nan"), float("inf")])]
    found = CalibrationStatistics.of(own)
    x = torch.cat([each.flatten() for each in samples()]).double().numpy()
    assert (found.elements, found.nonfinite) == (640, 2)
    assert (found.low, found.high) == (x.min(), 40.0)
    assert found.mean == pytest.approx(x.mean(), rel=1e-12)
    assert found.deviation == pytest.approx(x.std(), rel=1e-12)
    assert found.outliers == (abs(x - x.mean()) > 3 * x.std()).mean()
    for percent, value in found.percentiles.items():
        assert value == np.percentile(abs(x), percent, method="nearest")
    for none in ([], [torch.full((3,), float("nan"))]):
        with pytest.raises(ValueError, match=r"none of the .* elements of the samples is finite"):
            CalibrationStatistics.of(none)


@pytest.mark.slow
def test_the_method_with_the_least_error():
    method, errors = recommended_method(samples(), "int8")
    assert errors[method] == min(errors.values())
    x = torch.cat(samples())
    params = calibrated(samples(), "int8", "min_max")
    back = bs.quantize(x, "int8", params.scale).dequantize()
    assert errors["min_max"] == pytest.approx(float((x - back).double().square().mean()), rel=1e-6)
    assert params.scale.item() == np.float32(40.0) / np.float32(127)
