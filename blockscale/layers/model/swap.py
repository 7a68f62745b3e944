# SPDX-License-Identifier: BSD-3-Clause
"""Modules of a model are exchanged by name, all or none."""

from collections.abc import Callable, Mapping

from torch import nn


def swap(model: nn.Module, layers: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Put layers in by name, all or none; what was there, to be put back by another call."""
    old = {name: model.get_submodule(name) for name in layers}
    try:
        _put_in(model, layers)
    except BaseException:
        _put_in(model, old)
        raise
    return old


def _put_in(model: nn.Module, layers: Mapping[str, nn.Module]) -> None:
    for name, layer in layers.items():
        above, _, child = name.rpartition(".")
        parent = model.get_submodule(above)
        setattr(parent, child, layer)
        for tell in PLACED:
            tell(parent)


# Called with a module in which a layer was put in another's place: adapters, which stand around
# one layer (blockscale.integrations.peft), have to know what it is now.
PLACED: list[Callable[[nn.Module], None]] = []
