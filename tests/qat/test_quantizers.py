# SPDX-License-Identifier: BSD-3-Clause
"""The scales of inputs and outputs in training: from an observer, or from each tensor."""

import pytest
import torch
from torch import nn
from torch.ao import quantization as ao

import blockscale as bs
from blockscale.calibration.observers import make
from blockscale.compat import torch_ao as T
from blockscale.qat import quantizers


def small(**settings) -> nn.Module:
    return bs.prepare_qat(
        nn.Sequential(nn.Linear(8, 8)), bs.Recipe("int8", "int8", "int8"), **settings
    )


def test_the_static_scale_is_the_observers():
    model = small(observer="min_max")
    x = [torch.randn(3, 5, 8), 2 * torch.randn(2, 8)]
    other = make("min_max", "int8")
    for each in x:
        model(each)
        other.observe(each)
    found = model[0].input_quantizer.for_inference().scale
    assert torch.equal(found, other.qparams().scale)
    assert found.shape == (1, 1)


def test_observers_look_only_in_training_and_only_when_switched_on():
    model = small()
    x = torch.randn(4, 8)
    model(x)
    scale = model[0].input_quantizer.stored.scale
    model.eval()
    model(9 * x)
    model.train()
    bs.qat.switch(model, observe=False)
    model(9 * x)
    assert torch.equal(model[0].input_quantizer.stored.scale, scale)
    bs.qat.switch(model, observe=True, quantize=False)
    assert torch.equal(model(9 * x), nn.functional.linear(9 * x, model[0].weight, model[0].bias))
    assert not torch.equal(model[0].input_quantizer.stored.scale, scale)


def test_without_an_observer_scales_are_dynamic():
    model = small(observer=None)
    x = torch.randn(4, 8)
    expected = nn.functional.linear(
        bs.fake_quantize(x, "int8"), bs.fake_quantize(model[0].weight, "int8"), model[0].bias
    )
    assert torch.equal(model(x), bs.fake_quantize(expected, "int8"))
    assert not bs.convert(model)[0].input.static


@pytest.mark.parametrize("observer", ["moving_average:0.5", "min_max"])
def test_observers_of_every_kind_of_spec(observer):
    model = small(observer=lambda fmt: make(observer, fmt))
    model(torch.randn(4, 8))
    assert model[0].output_quantizer.observer.name == observer.partition(":")[0]


def test_the_scale_of_a_backward_pass_is_that_of_its_forward():
    """A second forward must not change what the first one saved."""
    model = small(observer="min_max")
    x = torch.randn(4, 8, requires_grad=True)
    y = model(x)
    inside = y.detach().abs() > -1
    model(50 * torch.randn(4, 8))
    y.sum().backward()
    assert bool(inside.all())
    assert bool(x.grad.isfinite().all())


# Layers that torch.ao prepared, as float layers; its flows are in tests/graph/adopt.


def conv(qconfig: ao.QConfig) -> nn.Module:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU()).train()
    model.qconfig = qconfig
    fused = ao.fuse_modules_qat(model, [["0", "1", "2"]])
    return ao.prepare_qat(fused)[0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_layer_that_trained() -> None:
    layer = conv(T.QConfig("bfp8", "mxfp4"))
    assert quantizers.is_trained(layer)
    assert str(quantizers.weight_quantizer(layer).format) == "e2m1:group32:e8m0/floor"
    plain = quantizers.float_layer(layer)
    assert not quantizers.is_trained(plain)
    assert [type(each) for each in plain] == [nn.Conv2d, nn.ReLU]
    assert quantizers.weighted(plain) is plain[0]
    assert plain.training == layer.training
    own = ao.QConfig(*(T.FakeQuantize.with_args(dtype="mxfp4") for _ in range(2)))
    with pytest.raises(ValueError, match=r"a ConvBnReLU2d has trained .* FakeQuantize\.with_args"):
        quantizers.weight_quantizer(conv(own))


def test_other_layers() -> None:
    linear, norm = nn.Linear(4, 4), nn.LayerNorm(4)
    assert quantizers.float_layer(linear) is quantizers.weighted(linear) is linear
    assert quantizers.weight_quantizer(linear) is None
    linear.qconfig = norm.qconfig = T.QConfig("bfp8", "bfp8")
    assert quantizers.weight_quantizer(linear).part == "weight"
    assert quantizers.weight_quantizer(norm) is None  # vectors stay in float
    linear.qconfig = ao.default_qconfig
    assert quantizers.weight_quantizer(linear) is None  # torch.ao's own
    assert quantizers.weighted(empty := nn.Sequential()) is empty


def test_layouts_and_places() -> None:
    assert quantizers.layout_of(nn.Linear(2, 2)) == "plain"
    assert quantizers.layout_of(nn.Conv1d(2, 2, 1)) == "channels_last"
    grouped = nn.ConvTranspose2d(4, 4, 1, groups=2)
    assert quantizers.layout_of(grouped) == "transposed_channels_last:2"
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))
    quantizers.replace_layer(model, "0.0", nn.Identity())
    assert torch.equal(model(torch.ones(1, 2)), torch.ones(1, 2))
