# SPDX-License-Identifier: BSD-3-Clause
"""torch.ao's own prepare and prepare_qat with formats in model.qconfig, and convert of ours."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.ao import quantization as ao

import blockscale as bs
from blockscale import qat
from blockscale.compat import torch_ao
from blockscale.compat import torch_ao as T
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
from tests.compat.torch_ao.prepared import CONFIGS, with_quantized_weights

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore:Please use quant_min and quant_max"
)


class Net(nn.Module):
    """A small CNN in torch.ao's eager style: stubs, fused modules, a functional sum."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.quant, self.dequant = ao.QuantStub(), ao.DeQuantStub()
        self.conv, self.bn, self.relu = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()
        self.up = nn.ConvTranspose2d(8, 8, 1, groups=2)
        self.fc, self.last = nn.Linear(128, 16), nn.Linear(16, 16)
        self.sum = torch.ao.nn.quantized.FloatFunctional()

    def forward(self, images: Tensor) -> Tensor:
        y = self.relu(self.bn(self.conv(self.quant(images))))
        y = torch.relu(self.fc(self.up(y).flatten(1)))
        return self.dequant(self.sum.add(self.last(y), y))


def images() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(4, 3, 6, 6)


def trained(model: nn.Module, x: Any, steps: int = 2) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return model.eval().apply(T.disable_observer)


@pytest.mark.some(4)
@pytest.mark.parametrize("name", CONFIGS)
def test_after_prepare(name: str) -> None:
    model = ao.fuse_modules(Net().eval(), [["conv", "bn", "relu"]])
    model.qconfig = CONFIGS[name]
    prepared = ao.prepare(model)
    with torch.no_grad(), bs.use("reference"):
        prepared(images())
        prepared.apply(T.disable_observer)
        expected = with_quantized_weights(prepared, CONFIGS[name])(images())
        quantized = T.convert(prepared, inplace=False)
        assert torch.equal(quantized(images()), expected)
        assert "fc.weight.codes" in dict(quantized.named_buffers())
        assert {entry.name for entry in bs.qat.ledger(quantized).quantized} == {
            "conv.0", "up", "fc", "last",
        }  # fmt: skip
    with pytest.raises(ValueError, match=r"torch.ao has no qscheme"):
        ao.convert(prepared)


@pytest.mark.parametrize("name", CONFIGS)
def test_after_prepare_qat(name: str) -> None:
    model = ao.fuse_modules_qat(Net().train(), [["conv", "bn", "relu"]])
    model.qconfig = CONFIGS[name]
    prepared = trained(ao.prepare_qat(model), images())
    with torch.no_grad(), bs.use("reference"):
        expected = with_quantized_weights(prepared, CONFIGS[name])(images())
        quantized = T.convert(prepared, inplace=False)
        assert torch.equal(quantized(images()), expected)
        rows = torch.ones(1, 128)
        assert torch.equal(quantized.fc(rows), prepared.fc(rows))  # what was trained
    with pytest.raises(ValueError, match=r"torch.ao has no qscheme"):
        ao.convert(prepared)


def bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 50}
    config = BertConfig(num_hidden_layers=1, num_attention_heads=2, **sizes)  # type: ignore[arg-type]
    model = BertModel(config, add_pooling_layer=False).eval()
    model.qconfig = T.QConfig("bfp8", "mxfp8")
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.qconfig = None
    return model


@pytest.mark.parametrize("qat", [False, True])
def test_a_transformer(qat: bool) -> None:
    tokens = torch.arange(14).reshape(2, 7)

    def of(model: nn.Module) -> Tensor:
        return model(tokens).last_hidden_state

    prepared = ao.prepare_qat(bert().train()).eval() if qat else ao.prepare(bert())
    with torch.no_grad(), bs.use("reference"):
        expected = of(prepared if qat else with_quantized_weights(prepared, bert().qconfig))
        quantized = T.convert(prepared, inplace=False)
        assert torch.equal(of(quantized), expected)
    assert len(bs.qat.ledger(quantized).quantized) == 6
    assert not any(hasattr(m, "weight_fake_quant") for m in quantized.modules())


def test_a_static_scale_without_data() -> None:
    model = Net().eval()
    model.qconfig = T.QConfig("int8", "int8_channel")
    prepared = ao.prepare(model)
    with pytest.raises(
        ValueError, match=r"the output of quant: 'moving_average' .int8:tensor:fp32. saw no data: 0"
    ):
        T.convert(prepared)
    assert type(prepared.fc) is nn.Linear
    prepared(images())
    assert T.convert(prepared) is prepared


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


@pytest.mark.slow
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
