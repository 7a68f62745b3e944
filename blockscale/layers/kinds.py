"""Which quantized layer takes the place of which float layer: the files of this folder say so."""

from functools import cache
from types import ModuleType

from torch import nn

from blockscale import layers
from blockscale.core.discover import import_all
from blockscale.layers.layer import QLayer


@cache
def _files() -> list[ModuleType]:
    """The files of this folder that hold a kind of layer: they define `replacement`."""
    files = import_all(layers.__name__, layers.__path__)
    return [file for file in files if hasattr(file, "replacement")]


def quantized_class(module: nn.Module) -> type[QLayer] | None:
    """The quantized layer that replaces a float layer of exactly this class, or None."""
    for file in _files():
        kind: type[QLayer] | None = file.replacement(type(module))
        if kind is not None:
            return kind
    return None
