# SPDX-License-Identifier: BSD-3-Clause
"""A quantized layer as the float layer that it stands for: peft builds adapters beside it, and
merges into it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.integrations.peft.parts import check_whole, part_of
from blockscale.layers.conv import QConv
from blockscale.layers.kinds import QEmbedding, QLinear, QTransposedLinear
from blockscale.layers.layer import QLayer

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def float_layer(layer: QLayer, dtype: torch.dtype | None = None) -> nn.Module:
    """The float layer with the same settings, the dequantized weight and the bias's values.

    dtype: of weight and bias, which require no gradients; by default the one that they had.
    Raises ValueError for a layer whose kind LoRA does not support, and for a part of a layer.
    """
    check_whole(layer)
    result = _meta_layer(layer)
    result.register_parameter("weight", _parameter(layer.dequantize_weight(dtype)))
    if "bias" in result._parameters:
        bias = layer.added_bias()
        values = None if bias is None else _parameter(bias.detach().clone().to(dtype))
        result.register_parameter("bias", values)
    return result.train(layer.training)


def float_base(layer: QLayer, dtype: torch.dtype | None = None) -> nn.Module:
    """`float_layer`; for a part of a layer the whole one, with zeros that take no memory: what peft
    builds an adapter beside."""
    if part_of(layer) is None:
        return float_layer(layer, dtype)
    result = _meta_layer(layer)
    zero = torch.zeros((), dtype=dtype or layer.qweight.dtype, device=layer.qweight.device)
    for name, parameter in list(result.named_parameters()):
        result.register_parameter(name, _parameter(zero.expand(parameter.shape)))
    if layer.added_bias() is None:
        result.register_parameter("bias", None)
    return result.train(layer.training)


def _meta_layer(layer: QLayer) -> Any:
    """The float layer on the meta device."""
    for kind, make in _MAKERS.items():
        if isinstance(layer, kind):
            return make(layer)
    kinds = ", ".join(kind.__name__ for kind in _MAKERS)
    raise ValueError(
        f"LoRA supports {kinds}, found {type(layer).__name__}: leave it out of target_modules"
    )


def _parameter(values: Tensor) -> nn.Parameter:
    return nn.Parameter(values, requires_grad=False)


def _linear(layer: Any) -> nn.Module:
    return nn.Linear(layer.in_features, layer.out_features, device="meta")


def _conv1d(layer: Any) -> nn.Module:
    from transformers.pytorch_utils import Conv1D  # peft needs transformers, too

    with torch.device("meta"):
        return Conv1D(layer.out_features, layer.in_features)


def _embedding(layer: Any) -> nn.Module:
    rows, width = layer.num_embeddings, layer.embedding_dim
    return nn.Embedding(rows, width, layer.padding_idx, device="meta")


def _conv(layer: Any) -> nn.Module:
    kind = _CONVOLUTIONS[len(layer.kernel_size) - 1]
    channels = layer.in_channels, layer.out_channels
    settings = (layer.stride, layer.padding, layer.dilation, layer.groups, True)
    return kind(*channels, layer.kernel_size, *settings, layer.padding_mode, device="meta")


_MAKERS: dict[type[QLayer], Callable[[Any], nn.Module]] = {
    QTransposedLinear: _conv1d,  # a QLinear as well, so it comes first
    QLinear: _linear,
    QEmbedding: _embedding,
    QConv: _conv,
}
