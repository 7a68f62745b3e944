"""Powers of two go into the scales, exactly; nothing else is written."""

import pytest
import torch

import blockscale as bs
from blockscale.core.catalog import CATALOG
from blockscale.layers.store import QWeight


@pytest.mark.parametrize("fmt", [*CATALOG, "int4:group32:fp32:offset", "uint4:group32:fp16:asym"])
def test_every_format(fmt: str) -> None:
    weight = QWeight.quantize(torch.randn(32, 64), bs.parse(fmt))
    values, codes = weight.dequantize(), weight.codes.clone()
    x = torch.randn(2, 64)
    before = torch.nn.functional.linear(x, weight.read())
    weight.read().div_(4)
    assert torch.equal(weight.dequantize(), values / 4)
    assert torch.equal(weight.codes, codes)
    assert torch.equal(torch.nn.functional.linear(x, weight.read()), before / 4)
    weight.read().mul_(torch.tensor(8.0))
    assert torch.equal(weight.dequantize(), values * 2)


@pytest.mark.parametrize("factor", [3, 0.3, 0.0, -2.0, float("inf"), float("nan"), True])
def test_other_factors_are_refused(factor: float) -> None:
    weight = QWeight.quantize(torch.randn(4, 32), bs.parse("mxfp4"))
    values = weight.dequantize()
    with pytest.raises(RuntimeError, match="its codes are fixed"):
        weight.read().mul_(factor)
    assert torch.equal(weight.dequantize(), values)


@pytest.mark.parametrize("fmt", ["mxfp4", "int8", "int4:group32:fp16", "nvfp4"])
def test_what_the_scale_cannot_hold_is_refused_and_nothing_changed(fmt: str) -> None:
    weight = QWeight.quantize(torch.randn(4, 32), bs.parse(fmt))
    values, parts = weight.dequantize(), [b.clone() for b in weight.buffers()]
    with pytest.raises(RuntimeError, match="its codes are fixed"):
        weight.read().mul_(2.0**200)
    assert torch.equal(weight.dequantize(), values)
    assert all(torch.equal(a, b) for a, b in zip(parts, weight.buffers(), strict=True))
