# SPDX-License-Identifier: BSD-3-Clause
"""QLinear and QTransposedLinear as modules: tests/ops/test_linear.py has what they compute."""

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.layers.kinds import QLinear, QTransposedLinear
from tests.support.qat_models import Conv1D


def quantized(layer: nn.Module, recipe: object = "int8_channel") -> nn.Module:
    model = nn.Sequential(layer)
    bs.quantize_(model, bs.Recipe.read(recipe))
    return model[0]


def test_sizes_are_the_float_layers() -> None:
    plain, transposed = quantized(nn.Linear(6, 4)), quantized(Conv1D(4, 6))
    assert isinstance(plain, QLinear)
    assert isinstance(transposed, QTransposedLinear)
    for layer in (plain, transposed):
        assert (layer.in_features, layer.out_features) == (6, 4)
        assert "in_features=6, out_features=4" in repr(layer)
    assert (transposed.nx, transposed.nf) == (6, 4)


def test_the_transposed_layer_holds_the_codes_of_the_plain_one() -> None:
    """Blocks run along the sum in both: same codes, same outputs."""
    plain, turned = nn.Linear(32, 4), Conv1D(4, 32)
    with torch.no_grad():
        turned.weight.copy_(plain.weight.t())
        turned.bias.copy_(plain.bias)
    a, b = quantized(plain, "int4:group8:fp32"), quantized(turned, "int4:group8:fp32")
    assert torch.equal(a.weight.codes, b.weight.codes)
    x = torch.randn(3, 32)
    assert torch.equal(a(x), b(x))
    assert torch.equal(a.dequantize_weight(), b.dequantize_weight().t())


@pytest.mark.parametrize("layer", [nn.Linear(6, 4), Conv1D(4, 6)], ids=["plain", "transposed"])
def test_inputs_of_another_size_are_refused(layer: nn.Module) -> None:
    made = quantized(layer)
    with pytest.raises(ValueError, match=r"expected an input \[\.\.\., 6\], found \(2, 5\)"):
        made(torch.ones(2, 5))


def test_the_bias_is_the_float_layers_own() -> None:
    float_layer = nn.Linear(6, 4)
    bias = float_layer.bias
    layer = quantized(float_layer)
    assert layer.bias is bias
    assert layer.bias_bytes == 16
    assert quantized(nn.Linear(6, 4, bias=False)).bias_bytes == 0
