"""LoRA layers around quantized layers: peft's own, which merge into codes."""

from typing import Any

from peft.tuners.lora import layer as peft_layers
from torch import nn

from blockscale.integrations.peft.float_layer import float_layer
from blockscale.integrations.peft.merging import MergesIntoCodes, unchanged
from blockscale.layers.layer import QLayer


class LoraLinear(MergesIntoCodes, peft_layers.Linear):
    """Around QLinear and QTransposedLinear."""


class LoraEmbedding(MergesIntoCodes, peft_layers.Embedding):
    """Around QEmbedding."""


class LoraConv1d(MergesIntoCodes, peft_layers.Conv1d):
    """Around QConv of one dimension."""


class LoraConv2d(MergesIntoCodes, peft_layers.Conv2d):
    """Around QConv of two dimensions."""


class LoraConv3d(MergesIntoCodes, peft_layers.Conv3d):
    """Around QConv of three dimensions."""


_OURS: dict[type[nn.Module], type[nn.Module]] = {
    peft_layers.Linear: LoraLinear,
    peft_layers.Embedding: LoraEmbedding,
    peft_layers.Conv1d: LoraConv1d,
    peft_layers.Conv2d: LoraConv2d,
    peft_layers.Conv3d: LoraConv3d,
}


def wrap(target: QLayer, adapter_name: str, config: Any, **kwargs: Any) -> nn.Module:
    """The LoRA layer that peft makes for the float layer, around `target` instead.

    Raises ValueError for layers that LoRA does not know, and for settings that would change the
    base weight.
    """
    if kwargs.get("parameter_name") is not None:
        raise ValueError(
            f"target_parameters names the codes of a {type(target).__name__}: name the layer "
            f"itself in target_modules"
        )
    stand_in = float_layer(target)
    with unchanged(stand_in):
        made: Any = peft_layers.dispatch_default(stand_in, adapter_name, config, **kwargs)
    if type(made) not in _OURS:
        raise ValueError(f"peft has no LoRA for the float layer of {type(target).__name__}")
    made.base_layer = target
    adopt(made)
    wrapped: nn.Module = made
    return wrapped


def adopt(layer: nn.Module) -> None:
    """Give a LoRA layer of peft, whose base layer is quantized now, the class that knows it."""
    ours = _OURS.get(type(layer))
    if ours is not None and isinstance(layer.base_layer, QLayer):
        layer.__class__ = ours
