"""Layers that train with fake quantization. One kind a file, with a function `trained(kind)`: the
class that a float layer of that kind has until `bs.convert`."""

from types import ModuleType

from torch import nn

from blockscale.core.discover import import_all
from blockscale.qat.layers.layer import QATLayer as QATLayer

_KINDS: list[ModuleType] = [
    module for module in import_all(__name__, __path__) if hasattr(module, "trained")
]


def trained(module: nn.Module) -> type[QATLayer]:
    """The class that trains a float layer for which ops.plan has a quantized one."""
    for kind in _KINDS:
        found: type[QATLayer] | None = kind.trained(type(module))
        if found is not None:
            return found
    raise NotImplementedError(f"blockscale.qat.layers has no file for {type(module).__name__}")
