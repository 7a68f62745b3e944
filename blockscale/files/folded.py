# SPDX-License-Identifier: BSD-3-Clause
"""A float model as training left it: without the batch norms that it folded into convolutions."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from blockscale.core.torch_private import BatchNorm
from blockscale.core.untrusted import kind_of
from blockscale.files.metadata import FileError
from blockscale.files.stored_model import StoredModel
from blockscale.layers.apply import swap
from blockscale.layers.kinds import quantized_class
from blockscale.layers.layer import QLayer
from blockscale.layers.model import stands_for_norm


@contextmanager
def without_folded_norms(model: nn.Module, source: StoredModel) -> Iterator[None]:
    """Put nn.Identity where the file has no batch norm, and a bias where its convolution got one.

    An error in the context puts everything back. Without one, the quantized layers remember what
    they include. Raises FileError for a model in which something else is in those places.
    """
    names = {name for name, _ in model.named_modules(remove_duplicate=False)}
    folded = {n: layer for n, layer in source.metadata.folded.items() if n in names}
    with ExitStack() as undo:
        identities = {
            norm: _without(model, source, norm, layer, undo) for norm, layer in folded.items()
        }
        yield
        undo.pop_all()
    for norm, identity in identities.items():
        layer = model.get_submodule(folded[norm])
        if isinstance(layer, QLayer):  # else its weight was dequantized, as _warn tells
            stands_for_norm(identity, layer)


def _without(
    model: nn.Module, source: StoredModel, name: str, layer: str, undo: ExitStack
) -> nn.Module:
    """What stands in the place of the batch norm `name` from now on."""
    norm, conv = model.get_submodule(name), _layer(model, source, name, layer)
    if type(norm) is nn.Identity:
        return norm
    if not isinstance(norm, BatchNorm) or norm.num_features != conv.out_channels:
        raise FileError(
            f"{source.path}: {name} is folded into {layer}, which has {conv.out_channels} outputs; "
            f"this model's {name} is {norm}: build the model it was made from"
        )
    names = [n for n, m in model.named_modules(remove_duplicate=False) if m is norm]
    identity = nn.Identity().train(norm.training)
    undo.callback(swap, model, swap(model, dict.fromkeys(names, identity)))
    if conv.bias is None:
        conv.bias = nn.Parameter(_room_for_bias(conv, source, f"{layer}.bias"))
        undo.callback(setattr, conv, "bias", None)
    return identity


def _layer(model: nn.Module, source: StoredModel, norm: str, name: str) -> Any:
    """The float convolution of a norm. Raises FileError if it cannot be quantized."""
    try:
        conv = model.get_submodule(name)
    except AttributeError:
        conv = None
    if conv is None or quantized_class(conv) is None or not hasattr(conv, "out_channels"):
        found = "is missing" if conv is None else f"is {kind_of(conv)}"
        raise FileError(
            f"{source.path}: the batch norm {norm} is folded into {name}, which {found} in this "
            f"model: build the model it was made from"
        )
    return conv


def _room_for_bias(conv: Any, source: StoredModel, name: str) -> torch.Tensor:
    """A bias on the weight's device, to be filled; in the file's dtype, as no other is known."""
    metadata = source.metadata
    stored = metadata.aliases.get(name, name)
    if stored in metadata.tensors:
        dtype = getattr(torch, metadata.tensors[stored].dtype)
    else:
        dtype = source.kinds.get(stored, (None, ()))[0] or conv.weight.dtype
    return torch.empty(conv.out_channels, dtype=dtype, device=conv.weight.device)
