"""Estimates against the tensors themselves."""

import math

import pytest
import torch

import blockscale as bs


@pytest.mark.parametrize("fmt", ["int8", "mxfp4", "nvfp4", "uint4", "int3:group10:fp16"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_is_exact(fmt, dtype):
    x = torch.randn(7, 90).to(dtype)
    saved = bs.estimate_memory_savings(fmt, x.shape, dtype)
    assert saved == 1 - bs.quantize(x, fmt).nbytes / x.nbytes
    assert bs.estimate_memory_savings("int16", (1, 1)) < 0.5
    assert bs.estimate_memory_savings("int8", (1, 1)) < 0  # the scale is larger than what is saved


def test_nothing_to_save():
    with pytest.raises(ValueError, match="has no elements to save anything of"):
        bs.estimate_memory_savings("int8", (0, 3))


def test_accuracy_is_measured():
    torch.manual_seed(0)
    x = torch.randn(8, 96)
    x[0, 0] = 100.0
    for fmt in ("mxfp4", "int8", bs.QuantizationParams(bs.parse("int8"), torch.tensor([[0.01]]))):
        found = bs.estimate_accuracy_impact(fmt, x)
        y = bs.QuantizationParams.of(fmt).quantize(x).dequantize().double()
        noise = (x.double() - y).square().sum()
        expected = 10 * math.log10(float(x.double().square().sum() / noise))
        assert found.sqnr == pytest.approx(expected, rel=1e-9)
        assert found.max_error == float((x.double() - y).abs().max())
    beyond = int((x.abs() > 1.27).sum()), int((x.abs() > 1.275).sum())  # what rounds back is within
    assert min(beyond) <= found.saturated * x.numel() / 100 <= max(beyond)
    better, worse = (bs.estimate_accuracy_impact(f, x).sqnr for f in ("int8_channel", "int8"))
    assert better > worse


def test_a_tensor_by_itself():
    x = torch.randn(4, 256)
    q = bs.auto_quantize_tensor(x, 4)
    assert q.format == bs.create_optimal_params(x, 4).format
    assert q.shape == x.shape
