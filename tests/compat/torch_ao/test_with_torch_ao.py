# SPDX-License-Identifier: BSD-3-Clause
"""The classes in the hands of a user and of torch.ao's own training."""

import warnings

import pytest
import torch
from torch import nn
from torch.ao import quantization as ao

from blockscale.compat import torch_ao
from blockscale.compat.torch_ao import (
    FakeQuantize,
    FusedMovingAvgObsFakeQuantize,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    QConfig,
    power_of_2,
    to_recipe,
)

pytestmark = pytest.mark.filterwarnings("ignore:Please use quant_min and quant_max")


def test_the_document_s_example() -> None:
    """The usage example of the founding document, with the names of this module."""
    observer = MinMaxObserver(power_of_2_scale=True)
    fake_quant = FakeQuantize(observer=MovingAverageMinMaxObserver, power_of_2_scale=True)
    qconfig = QConfig(
        activation=FakeQuantize.with_args(
            observer=MovingAverageMinMaxObserver, power_of_2_scale=True
        ),
        weight=FakeQuantize.with_args(observer=MovingAverageMinMaxObserver, power_of_2_scale=True),
    )
    x = torch.tensor([-1.0, 0.7, 2.0])
    observer(x), fake_quant(x)
    for made in (observer, fake_quant, qconfig.activation(), qconfig.weight()):
        made(x)
        scale, zero = made.calculate_qparams()  # 3 / 255 = 0.01176 is nearest to 2^-6 in log2
        assert (scale.item(), zero.item()) == (2.0**-6, 64)
    recipe = to_recipe(qconfig)
    assert str(recipe.weight) == str(recipe.input) == "uint8:tensor:pow2/nearest:asym"


def test_torch_ao_s_own_training_takes_them() -> None:
    """Eager QAT of torch.ao with our QConfig: every scale in the model is a power of two."""
    model = nn.Sequential(ao.QuantStub(), nn.Conv2d(1, 2, 3), nn.ReLU(), ao.DeQuantStub()).train()
    model.qconfig = power_of_2(torch_ao.get_default_qat_qconfig("onednn"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao says that it is deprecated
        ao.prepare_qat(model, inplace=True)
    model(torch.randn(2, 1, 8, 8)).sum().backward()
    fakes = [m for m in model.modules() if isinstance(m, ao.FakeQuantizeBase)]
    assert len(fakes) == 3  # of the input, the weight, the convolution's output
    for fake in fakes:
        assert isinstance(fake, FusedMovingAvgObsFakeQuantize)
        assert torch.equal(fake.scale.frexp().mantissa, torch.full_like(fake.scale, 0.5))
