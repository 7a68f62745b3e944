# SPDX-License-Identifier: BSD-3-Clause
"""Quantized weights know what they are called, so that errors can say which one they are about."""

from torch import nn

from blockscale.layers.layer import QLayer
from blockscale.layers.parameters.hold import all_held


def tell_names(model: nn.Module) -> None:
    """Tell each quantized weight and bias of a model its first name, unless it has one."""
    for name, layer in model.named_modules():
        if isinstance(layer, QLayer):
            for part, held in (("weight", layer.qweight), ("bias", layer.quantized_bias)):
                if held is not None:
                    held.name = held.name or f"{name}.{part}"
    for name, weight in all_held(model):
        weight.name = weight.name or name
