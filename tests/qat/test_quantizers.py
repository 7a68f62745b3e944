# SPDX-License-Identifier: BSD-3-Clause
"""The scales of inputs and outputs in training: from an observer, or from each tensor."""

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.calibration.observers import make


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
    found = model[0].input_quantizer.deployed().scale
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
