# SPDX-License-Identifier: BSD-3-Clause
"""Merging into floats loses nothing of an adapter, where codes of four bits lose it."""

from typing import Any

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.layers.layer import QLayer
from tests.integrations.peft.training import NF4, QUIET, layers, lora, quantized, train

peft = pytest.importorskip("peft")
pytestmark = [*QUIET, pytest.mark.filterwarnings("ignore:blockscale. merged adapters")]

from blockscale.integrations.peft import merge_into_float, merge_losses  # noqa: E402 - needs peft


@pytest.mark.slow
def test_the_adapter_comes_through_whole() -> None:
    """The loss is that of the model with its adapter, where codes give another."""
    model, inputs = quantized("llama")
    tuned = lora(model, ["q_proj", "down_proj"])
    train(tuned, inputs, 8)
    expected = tuned.eval()(**inputs).logits
    name = "model.layers.0.self_attn.q_proj"
    layer = tuned.get_submodule(f"base_model.model.{name}")
    weight = layer.base_layer.qweight.dequantize(torch.float32) + layer.get_delta_weight("default")
    alone = merge_into_float(tuned)
    torch.testing.assert_close(alone(**inputs).logits, expected, rtol=1e-4, atol=1e-4)
    merged = alone.get_submodule(name)
    assert type(merged) is nn.Linear and torch.equal(merged.weight, weight.detach())
    assert isinstance(alone.get_submodule("model.layers.0.self_attn.k_proj"), QLayer)
    assert not [n for n, _ in alone.named_parameters() if "lora" in n]


def test_codes_stay_where_they_lose_little() -> None:
    tuned = lora(quantized("llama", "int8:channel0:fp32")[0], ["q_proj", "down_proj"])
    tuned.merge_adapter()
    shares = {name: loss.share for name, loss in merge_losses(tuned).items()}
    tuned.unmerge_adapter()
    middle = sorted(shares.values())[len(shares) // 2]
    alone = merge_into_float(tuned, above=middle)
    for name, share in shares.items():
        layer = alone.get_submodule(name.removeprefix("base_model.model."))
        assert isinstance(layer, QLayer) == (share <= middle), name


def test_what_is_merged_already_and_what_cannot_be() -> None:
    """Merged adapters are taken out of the codes first; codes that nobody chooses become float."""
    once, again = (lora(layers_of(NF4), ["4"]) for _ in range(2))
    again.load_state_dict(once.state_dict())
    again.merge_adapter()
    ours, theirs = merge_into_float(once), merge_into_float(again)
    assert torch.equal(ours[4].weight, theirs[4].weight) and type(ours[4]) is nn.Linear
    weight = bs.quantize(torch.randn(6, 128), "int8:tensor:pow2/given", torch.tensor([[0.125]]))
    model = nn.Sequential(nn.Linear(128, 6))
    bs.quantize_(model, "int8:tensor:pow2/given", weights={"0": weight})
    tuned = lora(model, ["0"])
    expected = weight.dequantize() + tuned.base_model.model[0].get_delta_weight("default")
    assert torch.equal(merge_into_float(tuned, above=10.0)[0].weight, expected.detach())


def test_the_adapters_that_are_merged_are_those_that_stay() -> None:
    tuned = lora(layers_of(NF4), ["4"])
    layer = tuned.base_model.model[4]
    config = peft.LoraConfig(r=2, target_modules=["4"], init_lora_weights=False)
    layer.update_layer("other", 2, lora_alpha=8, config=config)
    expected = layer.base_layer.qweight.dequantize(torch.float32) + layer.get_delta_weight("other")
    tuned.merge_adapter(adapter_names=["other"])
    assert torch.equal(merge_into_float(tuned)[4].weight, expected.detach())


def layers_of(fmt: str) -> nn.Sequential:
    model = layers()
    bs.quantize_(model, fmt)
    return model


def test_dtypes_hooks_and_saving(tmp_path: Any) -> None:
    model, inputs = quantized("llama", dtype=torch.bfloat16)
    name = "model.layers.1.mlp.down_proj"
    calls: list[int] = []
    model.get_submodule(name).register_forward_hook(lambda *_: calls.append(1))
    tuned = lora(model, ["down_proj"])
    delta = tuned.get_submodule(f"base_model.model.{name}").get_delta_weight("default").detach()
    codes = model.get_submodule(name).get_base_layer().qweight.dequantize(torch.float32)
    alone = merge_into_float(tuned)
    merged = alone.get_submodule(name).weight
    assert torch.equal(merged, (codes + delta.float()).to(torch.bfloat16))  # rounded once
    expected = alone(**inputs).logits
    assert calls == [1]
    bs.save(alone, tmp_path / "m.safetensors")
    again = quantized("llama", dtype=torch.bfloat16)[0]
    fresh = type(again)(again.config).to(torch.bfloat16).eval()
    bs.load(fresh, tmp_path / "m.safetensors")
    assert torch.equal(fresh(**inputs).logits, expected)


def test_errors() -> None:
    with pytest.raises(TypeError, match="expected a PeftModel with LoRA adapters"):
        merge_into_float(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"above \(a fraction of the change"):
        merge_into_float(lora(layers_of(NF4), ["4"]), above=-1.0)
