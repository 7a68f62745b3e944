# SPDX-License-Identifier: BSD-3-Clause
"""Which quantized layer takes the place of which float layer: the files of this folder say so."""

from functools import cache
from types import ModuleType

from torch import nn

from blockscale import layers
from blockscale.core.discover import import_all
from blockscale.layers.layer import QLayer
from blockscale.layers.subclasses import parent_of, quantized_subclass


@cache
def _files() -> list[ModuleType]:
    """The files of this folder that hold a kind of layer: they define `replacement`."""
    files = import_all(layers.__name__, layers.__path__)
    return [file for file in files if hasattr(file, "replacement")]


def quantized_class(module: nn.Module) -> type[QLayer] | None:
    """The quantized layer that replaces a float layer: one for its very class, or one that is made
    for a subclass of such a class (blockscale.layers.subclasses); or None."""
    kind = type(module)
    exact = _replacement(kind)
    parent = None if exact is not None else parent_of(kind)
    return exact if parent is None else quantized_subclass(kind, _replacement(parent))


def _replacement(kind: type) -> type[QLayer] | None:
    """The quantized layer for float layers of exactly this class, or None."""
    for file in _files():
        found: type[QLayer] | None = file.replacement(kind)
        if found is not None:
            return found
    return None
