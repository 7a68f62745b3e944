# SPDX-License-Identifier: BSD-3-Clause
"""Merging into codes rounds once, from the codes that were there; unmerging puts those back."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.layers.before.rotate import Rotate
from tests.integrations.peft.training import (
    NF4,
    QUIET,
    codes_of,
    layers,
    lora,
    quantized,
    same,
    twins,
)

peft = pytest.importorskip("peft")
pytestmark = [
    *QUIET,
    pytest.mark.filterwarnings("ignore:blockscale. merged adapters"),
    pytest.mark.filterwarnings("ignore:Already following adapters were merged"),
]

from blockscale.integrations.peft import MergeLoss, merge_losses  # noqa: E402 - needs peft


def linear(fmt: str = NF4, **settings: Any) -> tuple[Any, Tensor]:
    """(a LoRA layer around a linear one [6, 128], what it adds to the weight)."""
    model = layers()
    bs.quantize_(model, fmt)
    layer = lora(model, ["4"], **settings).base_model.model[4]
    return layer, layer.get_delta_weight("default").detach()


@pytest.mark.parametrize("fmt", [NF4, "mxfp4", "int4:group32:fp32:asym", "int8:channel0:fp32"])
def test_merged_is_quantize_of_dequantized_plus_delta(fmt: str) -> None:
    layer, delta = linear(fmt)
    before = layer.base_layer.qweight
    wanted = before.dequantize(torch.float32) + delta
    layer.merge()
    expected = bs.quantize(wanted, fmt)
    assert torch.equal(layer.base_layer.qweight.codes, expected.packed)
    assert torch.equal(layer.base_layer.qweight.scale, expected.qparams.scale)
    loss = layer.merge_loss
    changed = int((before.tensor.codes != expected.codes).sum())
    assert (loss.codes, loss.changed, loss.fmt) == (wanted.numel(), changed, fmt_of(fmt))
    assert loss.lost == pytest.approx(float((expected.dequantize() - wanted).norm()), rel=1e-5)
    assert loss.added == pytest.approx(float(delta.norm()), rel=1e-4)
    layer.unmerge()
    assert layer.base_layer.qweight is before and layer.merge_loss is None


def fmt_of(name: str) -> str:
    return str(bs.parse(name))


def test_one_after_the_other_is_both_at_once() -> None:
    together, _ = linear()
    apart, _ = linear()
    for layer in (together, apart):
        torch.manual_seed(3)
        config = peft.LoraConfig(r=2, target_modules=["4"], init_lora_weights=False)
        layer.update_layer("other", 2, lora_alpha=8, config=config)
    together.merge(adapter_names=["default", "other"])
    apart.merge(adapter_names=["default"])
    apart.merge(adapter_names=["other"])
    assert together.merged_adapters == apart.merged_adapters == ["default", "other"]
    assert torch.equal(together.base_layer.qweight.codes, apart.base_layer.qweight.codes)
    assert torch.equal(together.base_layer.qweight.scale, apart.base_layer.qweight.scale)


def test_an_adapter_that_the_layer_does_not_have() -> None:
    layer, _ = linear()
    before = layer.base_layer.qweight
    layer.merge(adapter_names=["another"])
    assert layer.base_layer.qweight is before and not layer.merged and layer.merge_loss is None
    with pytest.warns(UserWarning, match="Already unmerged"):
        layer.unmerge()


def test_a_broken_adapter_leaves_the_layer_as_it_was() -> None:
    layer, _ = linear()
    layer.merge()
    merged, loss = layer.base_layer.qweight, layer.merge_loss
    config = peft.LoraConfig(r=2, target_modules=["4"], init_lora_weights=False)
    layer.update_layer("broken", 2, lora_alpha=8, config=config)
    layer.lora_A["broken"].weight.data[0, 0] = float("nan")
    with pytest.raises(ValueError, match="NaN"):
        layer.merge(adapter_names=["broken"])
    assert layer.base_layer.qweight is merged and layer.merge_loss is loss
    assert layer.merged_adapters == ["default"]
    layer.unmerge()
    assert not layer.merged


@pytest.mark.parametrize("settings", [{}, {"use_dora": True}, {"lora_bias": True}])
@pytest.mark.parametrize("name", ["0", "2", "4"])
def test_what_is_wanted_is_what_peft_merges_into_floats(name: str, settings: Any) -> None:
    quantized_model, dense = twins()
    torch.manual_seed(1)
    ours: Any = lora(quantized_model, [name], **settings).base_model.model.get_submodule(name)
    torch.manual_seed(1)
    theirs: Any = lora(dense, [name], **settings).base_model.model.get_submodule(name)
    ours.merge()
    theirs.merge(safe_merge=True)
    weight = theirs.base_layer.weight.detach()
    q = bs.quantize(weight.flatten(1), "int8:channel0:fp32")  # scales as of each output channel
    found = ours.base_layer.qweight.dequantize().flatten(1)
    torch.testing.assert_close(found, q.dequantize(), rtol=0, atol=float(q.qparams.scale.max()))
    assert torch.equal(ours.base_layer.bias, theirs.base_layer.bias)


def test_the_bias_comes_back_bit_for_bit() -> None:
    layer, _ = linear(lora_bias=True)
    layer.lora_B["default"].bias.data.normal_()
    before = layer.base_layer.bias.detach().clone()
    layer.merge()
    assert not torch.equal(layer.base_layer.bias, before)
    layer.unmerge()
    assert torch.equal(layer.base_layer.bias, before)


def test_a_transform_stays_before_the_layer() -> None:
    model = layers()
    recipe = bs.Recipe("int8:channel0:fp32", skip=["0", "2"])
    bs.quantize_(model, recipe, before={"4": Rotate(128, 128)})
    wrapped = lora(model, ["4"])
    layer: Any = wrapped.base_model.model[4]
    x = torch.randn(4, 3, 4, 4)
    unmerged = wrapped(x)
    wanted = layer.base_layer.dequantize_weight() + layer.get_delta_weight("default")
    wrapped.merge_adapter()
    rotated = bs.quantize(layer.base_layer.before.to_weight(wanted), "int8:channel0:fp32")
    assert torch.equal(layer.base_layer.qweight.codes, rotated.packed)
    torch.testing.assert_close(wrapped(x), unmerged, rtol=0.05, atol=0.1)
    wrapped.unmerge_adapter()
    assert torch.equal(wrapped(x), unmerged)


def test_cast_while_merged() -> None:
    layer, _ = linear()
    expected = layer.base_layer.qweight.dequantize(torch.float32)
    layer.merge()
    layer.bfloat16()
    layer.unmerge()
    assert layer.base_layer.qweight.dtype == torch.bfloat16
    assert torch.equal(layer.base_layer.qweight.dequantize(torch.float32), expected)


def test_formats_whose_scales_nobody_chooses() -> None:
    weight = bs.quantize(torch.randn(6, 128), "int8:tensor:pow2/given", torch.tensor([[0.125]]))
    model = nn.Sequential(nn.Linear(128, 6))
    bs.quantize_(model, "int8:tensor:pow2/given", weights={"0": weight})
    wrapped = lora(model, ["0"])
    with pytest.raises(ValueError, match=r"^0: nothing can be merged into int8:tensor:pow2/given"):
        wrapped.merge_adapter()
    with pytest.raises(ValueError, match="nothing can be merged"):
        wrapped.merge_and_unload()
    assert type(wrapped.base_model.model[0]).__name__ == "LoraLinear"


def test_a_quantized_bias_takes_no_lora_bias() -> None:
    model = nn.Sequential(nn.Linear(64, 6))
    bs.quantize_(model, bs.Recipe("int8:channel0:fp32", bias="int8:tensor:fp32"))
    wrapped = lora(model, ["0"], lora_bias=True)
    before = codes_of(wrapped)
    with pytest.raises(ValueError, match="cannot be merged into a quantized bias"):
        wrapped.merge_adapter()
    assert same(codes_of(wrapped), before)


def test_disabled_adapters_are_unmerged_first() -> None:
    model, inputs = quantized("llama")
    plain = model(**inputs).logits
    wrapped = lora(model, ["q_proj", "down_proj"])
    wrapped.merge_adapter()
    with wrapped.disable_adapter():
        assert torch.equal(wrapped(**inputs).logits, plain)


def test_one_warning_counts_what_was_lost() -> None:
    model, inputs = quantized("llama")
    wrapped = lora(model, ["q_proj", "v_proj"])
    with pytest.warns(UserWarning, match="merged adapters into 4 quantized layers") as caught:
        wrapped.merge_adapter()
    [told] = [str(each.message) for each in caught if "blockscale" in str(each.message)]
    assert [each.filename for each in caught if "blockscale" in str(each.message)] == [__file__]
    losses = merge_losses(wrapped)
    assert len(losses) == 4 and all(isinstance(loss, MergeLoss) for loss in losses.values())
    changed, codes = (
        sum(getattr(loss, part) for loss in losses.values()) for part in ("changed", "codes")
    )
    assert f"{changed} of {codes} codes changed" in told
    worst = max(losses.values(), key=lambda loss: loss.share)
    assert f"{worst.share:.0%} of the change lost" in told.splitlines()[1]
    merged = wrapped(**inputs).logits
    wrapped.unmerge_adapter()
    with pytest.warns(UserWarning, match="merged adapters into 4 quantized layers") as caught:
        alone = wrapped.merge_and_unload()
    assert str(caught[0].message) == told.replace("base_model.model.", "")
    assert torch.equal(alone(**inputs).logits, merged)
    assert not merge_losses(alone) and not [n for n, _ in alone.named_parameters() if "lora" in n]


def test_whoever_reads_the_weight_of_an_adapted_layer_gets_a_tensor() -> None:
    layer, _ = linear()
    expected = layer.base_layer.qweight.dequantize()
    assert torch.equal(layer.weight.T + 0, expected.T)
