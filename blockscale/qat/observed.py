# SPDX-License-Identifier: BSD-3-Clause
"""Layers that torch.ao's flows prepared with formats of ours, as float layers again.

torch.ao keeps what quantizes a weight in its layer (`weight_fake_quant`, in training) or makes it
of the layer's `qconfig`. What has a format as its dtype (blockscale.compat.torch_ao) has a `format`
and `values(layout)`, a module that gives what the format leaves of a tensor.
"""

from typing import Any

from torch import nn

from blockscale.core.layout import grouped_layout


def weight_quantizer(layer: nn.Module) -> Any:
    """What quantizes the layer's weight in a format; None without one, and for the vectors of norms
    and activations, which torch.ao leaves in float.

    Raises ValueError for a convolution that trained in blocks of another layout.
    """
    if is_trained(layer):
        made: Any = layer.weight_fake_quant
        if getattr(made, "part", "weight") != "weight" and layer.weight.ndim > 2:  # type: ignore[operator]
            raise ValueError(
                f"a {type(layer).__name__} has trained with its weight in {made.format} along "
                "the last dimension, as activations are, and layers store input channels "
                "last: pass QConfig of blockscale.compat.torch_ao, or "
                "FakeQuantize.with_args(part='weight')"
            )
    else:
        constructor = getattr(getattr(layer, "qconfig", None), "weight", None)
        own: Any = weighted(layer)._parameters
        matrices = [w for name, w in own.items() if name.startswith("weight") and w.ndim > 1]
        made = constructor() if constructor is not None and matrices else None
    return made if hasattr(made, "values") else None


def is_trained(layer: nn.Module) -> bool:
    """Whether torch.ao made it a layer that trains with a fake quantized weight."""
    return hasattr(layer, "weight_fake_quant")


def float_layer(layer: nn.Module) -> nn.Module:
    """A layer that trains as the float layer that it stands for, its batch norm folded; others as
    they are."""
    if not is_trained(layer):
        return layer
    made: nn.Module = layer.to_float()  # type: ignore[operator]
    return made.train(layer.training)


def weighted(layer: nn.Module) -> Any:
    """The layer with the weight: of a fused one (Conv2d with ReLU and so on) the first."""
    return layer[0] if isinstance(layer, nn.Sequential) and len(layer) else layer


def layout_of(layer: Any) -> str:
    """How the layer's weight is stored (blockscale.core.layout)."""
    if isinstance(layer, nn.modules.conv._ConvTransposeNd):
        return grouped_layout(layer.groups)
    return "channels_last" if layer.weight.ndim > 2 else "plain"


def replace_layer(model: nn.Module, name: str, layer: nn.Module) -> None:
    """Put a layer in the place of the one of that name."""
    above, _, last = name.rpartition(".")
    setattr(model.get_submodule(above), last, layer)
