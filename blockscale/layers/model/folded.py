# SPDX-License-Identifier: BSD-3-Clause
"""Batch norms that training folded into a convolution: which module stands where one was.

The convolution remembers it, and no name: a model may be put into another one. So a file can say
where its float model has a batch norm (docs/files.md).
"""

from torch import nn

from blockscale.layers.layer import QLayer

_KEPT = "_folded_norms"  # in a tuple, so that it is no child: it stays where it was


def stands_for_norm(place: nn.Module, layer: QLayer) -> None:
    """Remember that `place` stands where a batch norm was that is folded into `layer`."""
    setattr(layer, _KEPT, (*folded_places(layer), place))


def folded_places(layer: QLayer) -> tuple[nn.Module, ...]:
    """What stands where batch norms were that are folded into `layer`."""
    places: tuple[nn.Module, ...] = vars(layer).get(_KEPT, ())
    return places


def folded_norms(model: nn.Module) -> dict[str, str]:
    """{name of a batch norm that was: the convolution that includes it}, in the model's order."""
    layers: dict[nn.Module, str] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, QLayer):
            layers |= dict.fromkeys(folded_places(layer), name)
    modules = model.named_modules(remove_duplicate=False)
    return {name: layers[module] for name, module in modules if module in layers}
