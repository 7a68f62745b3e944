# SPDX-License-Identifier: BSD-3-Clause
"""Layers that train with fake quantization, a kind or a few in each file of this folder.

A file has a function `trained(kind)`: the class that a float layer of the class `kind` has until
`bs.convert`, or None for other classes.
"""

from types import ModuleType

from torch import nn

from blockscale.core import import_all
from blockscale.qat.layers.layer import QATLayer as QATLayer

_KINDS: list[ModuleType] = [
    module for module in import_all(__name__, __path__) if hasattr(module, "trained")
]


def trained(module: nn.Module) -> type[QATLayer]:
    """The class that trains a float layer for which `layers` has a quantized one.

    Raises NotImplementedError where no file here has it.
    """
    for kind in _KINDS:
        layer_class: type[QATLayer] | None = kind.trained(type(module))
        if layer_class is not None:
            return layer_class
    raise NotImplementedError(
        f"{type(module).__name__} has no layer that trains it here: name it in the recipe's "
        "skip list"
    )


def why_not_trained(module: nn.Module) -> str | None:
    """Why a float layer that can be quantized cannot be trained so, or None."""
    try:
        return trained(module).refuses(module)
    except NotImplementedError:
        text = "can be quantized, but not trained with fake quantization"
        return f"{type(module).__name__} {text}"
