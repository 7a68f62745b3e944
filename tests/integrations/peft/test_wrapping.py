"""LoRA layers around quantized layers compute what peft's do around the dequantized ones."""

from typing import Any

import pytest
import torch
from torch import nn

import blockscale as bs
from tests.integrations.peft.training import QUIET, codes_of, layers, lora, quantized, same, twins

peft = pytest.importorskip("peft")
pytestmark = QUIET


@pytest.mark.parametrize(
    "fmt", ["nf4:group64:fp32", "mxfp4", "int8:channel0:fp32", "int4:group32:bf16:asym"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_is_the_product_with_the_dequantized_weight(fmt: str, dtype: Any) -> None:
    model = nn.Sequential(nn.Linear(64, 48)).to(dtype)
    bs.quantize_(model, fmt)
    weight = model[0].qweight.dequantize(torch.float32)
    wrapped = lora(model, ["0"])
    wrapped.base_model.model[0].lora_B["default"].weight.data.zero_()
    x = torch.randn(5, 64, dtype=dtype, requires_grad=True)
    with bs.use("reference"):
        y = wrapped(x)
        gradient = torch.randn_like(y)
        y.backward(gradient)
    assert torch.equal(x.grad, (gradient.float() @ weight).to(dtype))
    layer = wrapped.base_model.model[0]
    b = layer.lora_B["default"].weight
    inner = (x.detach().to(b.dtype) @ layer.lora_A["default"].weight.T).T
    expected = (gradient.to(b.dtype).T * layer.scaling["default"]) @ inner.T
    torch.testing.assert_close(b.grad, expected)


@pytest.mark.parametrize(
    "settings", [{}, {"use_dora": True}, {"use_rslora": True}, {"lora_bias": True}]
)
def test_convolutions_and_linear_layers(settings: dict[str, Any]) -> None:
    model, dense = twins()
    names = ["0", "2", "4"]
    torch.manual_seed(1)
    ours = lora(model, names, **settings)
    torch.manual_seed(1)
    theirs = lora(dense, names, **settings)
    x = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(ours(x), theirs(x))
    mine, other = (dict(each.named_parameters()) for each in (ours, theirs))
    adapters = {name for name in other if "lora_" in name}
    assert adapters == {name for name in mine if "lora_" in name}
    for each in (ours, theirs):
        each.train()(x).square().sum().backward()
    for name in adapters:
        torch.testing.assert_close(mine[name].grad, other[name].grad, rtol=1e-4, atol=1e-4)


def test_an_embedding_and_a_transposed_linear_layer() -> None:
    model, inputs = quantized("gpt2")
    plain = model(**inputs).logits
    wrapped = lora(model, ["wte", "c_attn"], init_lora_weights=True, fan_in_fan_out=True)
    block = wrapped.base_model.model.transformer
    assert type(block.wte).__name__ == "LoraEmbedding"
    assert block.h[0].attn.c_attn.fan_in_fan_out
    assert torch.equal(wrapped(**inputs).logits, plain)  # B is zero
    table, adapter = block.wte.base_layer, block.wte
    adapter.lora_embedding_A["default"].data.normal_()
    ids = torch.tensor([[3, 1, 3]])
    delta = adapter.get_delta_weight("default")
    torch.testing.assert_close(adapter(ids), table(ids) + delta[ids])


def test_conv1d_sets_fan_in_fan_out_as_for_the_float_layer() -> None:
    model, _ = quantized("gpt2")
    with pytest.warns(UserWarning, match="Setting fan_in_fan_out to True"):
        wrapped = lora(model, ["c_attn"])
    assert wrapped.peft_config["default"].fan_in_fan_out


@pytest.mark.parametrize("init", ["pissa", "olora"])
def test_what_would_change_the_base_weight_is_refused(init: str) -> None:
    model, inputs = quantized("llama")
    before, plain = codes_of(model), model(**inputs).logits
    with pytest.raises(ValueError, match=r"q_proj: this init_lora_weights changes the base weight"):
        lora(model, ["q_proj"], init_lora_weights=init)
    assert same(codes_of(model), before)
    assert torch.equal(model(**inputs).logits, plain)


@pytest.mark.parametrize("init", ["pissa", "olora"])
def test_the_remedy_that_it_names(init: str) -> None:
    """The adapter first, then quantize_: the base is what is left of the weight."""
    model = layers()
    wrapped = lora(model, ["4"], init_lora_weights=init)
    x = torch.randn(2, 3, 4, 4)
    exact = wrapped(x)
    bs.quantize_(wrapped, "int8:channel0:fp32")
    assert type(wrapped.base_model.model[4]).__name__ == "LoraLinear"
    torch.testing.assert_close(wrapped(x), exact, rtol=0.1, atol=0.1)


def test_layers_without_lora_say_so() -> None:
    model = nn.Sequential(nn.ConvTranspose2d(4, 4, 2))
    bs.quantize_(model, "int8:channel1:fp32")
    with pytest.raises(
        ValueError, match=r"^0: LoRA stands around .*QConv; there is none for QConvT"
    ):
        lora(model, ["0"])


def test_a_custom_module_of_the_user_comes_first() -> None:
    class Mine(nn.Module):
        def __init__(self, base: nn.Module, name: str, **settings: Any):
            super().__init__()
            self.lora_base = base

        def forward(self, x: torch.Tensor) -> Any:
            return self.lora_base(x) + 1

    model, _ = twins()
    config = peft.LoraConfig(target_modules=["4"])
    config._register_custom_module({type(model[4]): Mine})
    assert isinstance(peft.get_peft_model(model, config).base_model.model[4], Mine)
