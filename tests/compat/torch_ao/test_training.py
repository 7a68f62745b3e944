# SPDX-License-Identifier: BSD-3-Clause
"""Training by a configuration of torch.ao."""

import pytest
import torch
from torch import nn
from torch.ao import quantization as ao

from blockscale import qat
from blockscale.compat import torch_ao
from blockscale.compat.torch_ao import (
    FakeQuantize,
    HistogramObserver,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    QConfig,
    QConfigMapping,
    to_observer,
)
from blockscale.graph import to_integer, with_integer_bias
from blockscale.qat.layers import QATLayer
from tests.compat.torch_ao.configurations import (
    SYMMETRIC,
)

pytestmark = pytest.mark.filterwarnings("ignore:Please use quant_min and quant_max")


def test_observers_by_name() -> None:
    assert to_observer(torch_ao.default_qat_qconfig) == "moving_average:0.01"
    assert to_observer(ao.get_default_qconfig()) == "mse"
    assert to_observer(torch_ao.default_qconfig) == "min_max"
    assert to_observer(torch_ao.default_dynamic_qconfig) == to_observer(None) == "moving_average"
    several = (
        QConfigMapping()
        .set_global(ao.default_qconfig)
        .set_module_name("a", ao.get_default_qconfig())
    )
    with pytest.raises(ValueError, match="several observers, min_max, mse: choose one"):
        to_observer(several)
    with pytest.raises(ValueError, match="RecordingObserver has no counterpart"):
        to_observer(ao.default_debug_qconfig)
    fixed = HistogramObserver.with_args(bins=16)
    assert (
        to_observer(QConfigMapping().set_object_type(nn.LayerNorm, QConfig(fixed, None)))
        == "moving_average"
    )


def test_training_by_a_mapping_down_to_integers() -> None:
    """prepare_qat, train, convert, and then integers alone: the same numbers all the way."""
    model = nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 4))
    weight = FakeQuantize.with_args(
        observer=MinMaxObserver, dtype=torch.qint8, qscheme=SYMMETRIC, power_of_2_scale=True
    )
    activation = FakeQuantize.with_args(observer=MovingAverageMinMaxObserver, power_of_2_scale=True)
    assert torch_ao.prepare_qat(model, QConfig(activation, weight)) is model
    for _ in range(5):
        x = torch.randn(32, 16)
        (model(x) - x[:, :4]).square().mean().backward()
        for parameter in model.parameters():
            parameter.data -= 0.05 * parameter.grad
    model.eval()
    x = torch.randn(9, 16)
    trained = model(x)
    qat.convert(model)
    assert torch.equal(model(x), trained)
    integer = to_integer(model, x)
    assert integer.exact
    assert torch.equal(integer(x), with_integer_bias(model)(x))


def attributed() -> nn.Sequential:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Sequential(nn.Linear(6, 6)), nn.ReLU())
    return model.append(nn.Linear(6, 2))


def test_the_attributes_of_torch_ao_s_eager_mode() -> None:
    """model.qconfig, as torch.ao.quantization.prepare_qat reads it, and those of modules inside."""
    rounding = torch_ao.power_of_2(torch_ao.default_qat_qconfig)
    model, named, x = attributed(), attributed(), torch.randn(5, 8)
    model.qconfig, model[2].qconfig, model[4].qconfig = rounding, ao.default_qat_qconfig, None
    mapping = QConfigMapping().set_global(rounding).set_module_name("2", ao.default_qat_qconfig)
    torch_ao.prepare_qat(named, mapping.set_module_name("4", None))
    copied = torch_ao.prepare_qat(model, inplace=False)
    assert type(model[0]) is nn.Linear
    assert torch_ao.prepare_qat(model) is model
    expected = named(x)
    assert torch.equal(model(x), expected)
    assert torch.equal(copied(x), expected)
    torch_ao.convert(model.eval())
    assert str(model[0].input.format) == "uint7:tensor:pow2/nearest:asym"
    assert str(model[2][0].input.format) == "uint7:tensor:fp32:asym:recip"
    assert type(model[4]) is nn.Linear


def test_the_attributes_are_those_that_torch_ao_fakes_by() -> None:
    """The same layers get fake quantizers from torch.ao's own prepare_qat."""
    ours, theirs = attributed(), attributed()
    for model in (ours, theirs):
        model.qconfig, model[2].qconfig = ao.default_qat_qconfig, None
    torch_ao.prepare_qat(ours)
    with pytest.warns(DeprecationWarning):
        ao.prepare_qat(theirs.train(), inplace=True)
    faked = {name for name, m in theirs.named_modules() if hasattr(m, "weight_fake_quant")}
    assert faked == {"0", "4"}
    assert {n for n, m in ours.named_modules() if isinstance(m, QATLayer)} == faked


def test_no_configuration_at_all() -> None:
    model = attributed()
    with pytest.raises(ValueError, match=r"or set model\.qconfig, as torch\.ao"):
        torch_ao.prepare_qat(model)
    assert type(model[0]) is nn.Linear
