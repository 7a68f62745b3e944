# SPDX-License-Identifier: BSD-3-Clause
"""What models that torch.ao prepared with formats are compared with: weights rounded by hand."""

import copy
from typing import Any

import torch
from torch import nn

import blockscale as bs
from blockscale.compat import torch_ao as T
from blockscale.core.pack import from_stored, grouped_layout, to_stored

CONFIGS = {
    "blocks": T.QConfig("bfp8", "bfp8"),
    "mx": T.QConfig("mxfp8", "mxfp4", ch_axis=1),
    "static": T.QConfig("int8", "int4:group32:fp16"),
    "classes": T.QConfig(
        T.FakeQuantize.with_args(observer=T.MinMaxObserver, dtype="uint8:tensor:fp32:asym"),
        T.FakeQuantize.with_args(dtype=bs.parse("int8_channel")),
    ),
}


def format_of(constructor: Any) -> str:
    """The format of a QConfig's part."""
    return str(constructor().format)


def rounded(layer: nn.Module, fmt: str) -> None:
    """Round a float layer's weight, as layers store it, in place."""
    weight: Any = layer.weight
    layout = "channels_last" if weight.ndim > 2 else "plain"
    if isinstance(layer, nn.modules.conv._ConvTransposeNd):
        layout = grouped_layout(layer.groups)
    values = bs.fake_quantize(to_stored(weight.detach(), layout).contiguous(), fmt)
    with torch.no_grad():
        weight.copy_(from_stored(values, layout, weight.shape))


def with_quantized_weights(model: nn.Module, qconfig: Any) -> nn.Module:
    """A copy of a prepared model in which float layers with rounded weights stand for its layers,
    as torch.ao's own `to_float` makes them after training."""
    made = copy.deepcopy(model)
    for name, module in list(made.named_modules()):
        if hasattr(module, "weight_fake_quant"):
            plain: Any = module.to_float().eval()  # type: ignore[operator]
            if hasattr(module, "activation_post_process"):
                plain.activation_post_process = module.activation_post_process
                for hook in module._forward_hooks.values():
                    plain.register_forward_hook(hook)
            above, _, last = name.rpartition(".")
            setattr(made.get_submodule(above), last, plain)
    for module in made.modules():
        kinds = nn.Linear | nn.Embedding | nn.modules.conv._ConvNd
        if isinstance(module, kinds) and getattr(module, "qconfig", qconfig) is not None:
            rounded(module, format_of(qconfig.weight))
    return made
