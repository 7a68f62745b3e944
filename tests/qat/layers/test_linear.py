# SPDX-License-Identifier: BSD-3-Clause
"""Linear layers in training, the transposed one of transformers too."""

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.qat.layers.layer import Features
from blockscale.qat.layers.linear import QATLinear, QATTransposedLinear
from tests.support.qat_models import Conv1D


def test_conv1d_of_transformers_is_what_the_test_model_stands_for():
    pytest.importorskip("transformers")
    from transformers.pytorch_utils import Conv1D as Real

    real, ours = Real(6, 4), Conv1D(6, 4)
    ours.load_state_dict(real.state_dict())
    x = torch.randn(3, 4)
    assert torch.equal(real(x), ours(x))
    for layer in (real, ours):
        model = bs.prepare_qat(nn.Sequential(layer), bs.Recipe("int8_channel", "int8"))
        assert type(model[0]).__name__ == "QATTransposedLinear"


@pytest.mark.parametrize(
    "make", [nn.Linear, lambda k, n: Conv1D(n, k)], ids=["plain", "transposed"]
)
def test_gradients_are_those_of_the_quantized_values(make) -> None:
    """By hand: dy/dx is the quantized weight, dy/dw the quantized input, where none saturates."""
    model = nn.Sequential(make(8, 4))
    bs.prepare_qat(model, bs.Recipe("int8:channel0:pow2/ceil", "int8:token:pow2/ceil"))
    layer, x = model[0], torch.randn(3, 8, requires_grad=True)
    seen = bs.fake_quantize(x.detach(), "int8:token:pow2/ceil")
    stored = layer.weight.detach() if make is nn.Linear else layer.weight.detach().t()
    weight = bs.fake_quantize(stored, "int8:channel0:pow2/ceil")
    gradient = torch.randn(3, 4)
    y = model(x)
    torch.testing.assert_close(y, seen @ weight.t() + layer.bias, rtol=0, atol=1e-5)
    y.backward(gradient)
    of_weight = gradient.t() @ seen
    found = layer.weight.grad if make is nn.Linear else layer.weight.grad.t()
    torch.testing.assert_close(found, of_weight, rtol=0, atol=1e-5)
    torch.testing.assert_close(x.grad, gradient @ weight, rtol=0, atol=1e-5)
    torch.testing.assert_close(layer.bias.grad, gradient.sum(0), rtol=0, atol=1e-5)


def test_features_and_norms() -> None:
    layer = bs.prepare_qat(nn.Sequential(nn.Linear(8, 4)), "int8")[0]
    assert QATLinear.features(layer) == Features(input=8, output=4)
    assert QATTransposedLinear.features(Conv1D(4, 8)) == Features(input=8, output=4)
    with pytest.raises(NotImplementedError, match="no batch norm can be folded into a QATLinear"):
        layer.fold(nn.BatchNorm1d(4))
