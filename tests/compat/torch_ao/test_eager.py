# SPDX-License-Identifier: BSD-3-Clause
"""torch.ao's own prepare and prepare_qat with formats in model.qconfig, and convert of ours."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.ao import quantization as ao

import blockscale as bs
from blockscale.compat import torch_ao as T
from tests.compat.torch_ao.prepared import CONFIGS, with_quantized_weights

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


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
