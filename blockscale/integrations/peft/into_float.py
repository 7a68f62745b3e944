# SPDX-License-Identifier: BSD-3-Clause
"""Adapters merged into floats: layers whose codes would lose them become float layers."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from blockscale.core.untrusted import kind_of
from blockscale.integrations.peft.float_layer import float_layer
from blockscale.integrations.peft.merging import MergesIntoCodes, check_mergeable
from blockscale.integrations.peft.tuner import QuantizedLoraModel
from blockscale.layers.layer import QLayer


def merge_into_float(
    tuned: nn.Module,
    adapter_names: list[str] | None = None,
    *,
    above: float = 0.0,
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """peft's `merge_and_unload`, but layers become float layers where codes would lose much of what
    the adapters add: their codes dequantized, and the adapters added, in float32.

    tuned: the PeftModel of a quantized model. It is used up, as by `merge_and_unload`.
    adapter_names: which to merge; None: those that are merged now, or else the active ones.
    above: a layer becomes float if merging into its codes would lose more than this part of the
        change, ‖Q(W + Δ) - (W + Δ)‖ / ‖Δ‖ (`MergeLoss.share`). 0, the default: all that have an
        adapter; with 0.1 codes stay where nine tenths and more come through. Layers whose codes
        nothing can be merged into become float in any case.
    dtype: of the float layers; None: that which each weight had before it was quantized.

    Returns the model without adapters. Inputs and outputs of layers that become float are no longer
    quantized. Raises TypeError for a model without LoRA, ValueError for a part below 0.
    """
    inner: Any = getattr(tuned, "base_model", tuned)
    if not isinstance(inner, QuantizedLoraModel):
        raise TypeError(
            "merge_into_float: expected a PeftModel with LoRA adapters, as get_peft_model "
            f"and PeftModel.from_pretrained return it, found {kind_of(tuned)}"
        )
    if not above >= 0:
        raise ValueError(
            f"above (a fraction of the change, 0.1 is a tenth) must be >= 0, got {above}"
        )
    merged = [name for layer in _lora_layers(inner.model) for name in layer.merged_adapters]
    names = adapter_names or list(dict.fromkeys(merged)) or None
    layers = list(_put_float_layers(inner.model, names, above))
    model: nn.Module = inner.merge_and_unload(adapter_names=names)
    for module, kind in layers:
        module.to(dtype or kind)
    return model


def _put_float_layers(
    model: nn.Module, adapter_names: list[str] | None, above: float
) -> Iterator[tuple[nn.Module, torch.dtype]]:
    """Put float32 layers below the adapters that codes would lose; each with its own dtype."""
    for layer in list(_lora_layers(model)):
        names = adapter_names or list(layer.active_adapters)
        if layer.merged_adapters:
            layer.unmerge()
        if not _has(layer, names) or not _loses(layer, names, above):
            continue
        base = layer.base_layer
        layer.base_layer = float_layer(base, torch.float32)
        QLayer.take_place_of(layer.base_layer, base)  # hooks and mode, as a layer replaced has them
        yield layer.base_layer, base.qweight.dtype


def _lora_layers(model: nn.Module) -> Iterator[Any]:
    """LoRA layers around quantized layers."""
    for module in model.modules():
        if isinstance(module, MergesIntoCodes) and isinstance(module.base_layer, QLayer):
            yield module


def _has(layer: Any, names: list[str]) -> bool:
    return any(name in layer.lora_A or name in layer.lora_embedding_A for name in names)


def _loses(layer: Any, names: list[str], above: float) -> bool:
    """Whether merging into codes would lose more than this part of the change."""
    try:
        check_mergeable(layer.base_layer, biased=any(layer.lora_bias.get(n) for n in names))
    except ValueError:
        return True
    if above == 0:
        return True
    layer.merge(adapter_names=names)
    loss = layer.merge_loss
    layer.unmerge()
    return loss is not None and bool(loss.share > above)
