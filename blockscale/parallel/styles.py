# SPDX-License-Identifier: BSD-3-Clause
"""Styles for torch's `parallelize_module`, whose own know float layers alone."""

from functools import cache
from typing import Any

from torch import nn

from blockscale.layers.layer import QLayer
from blockscale.layers.store import QWeight
from blockscale.parallel.parts import STYLES
from blockscale.parallel.plan import deal_layers

_CALLED = "bs.parallel.style"


def style(name: str) -> Any:
    """A ParallelStyle that cuts a quantized layer as `shard_` does: `parallelize_module(model,
    mesh, {"up": bs.parallel.style("colwise"), "down": bs.parallel.style("rowwise")})`.

    name: "colwise", "rowwise", "colwise_gather_output", "rowwise_split_input",
        "embedding_rowwise" or "embedding_colwise" (bs.parallel.shard_). Inputs and outputs are
        plain tensors. A layer gets codes of its own: one that had the same weight keeps all of it

    Raises ValueError for another name; the style, when it is applied, for a layer that is not
    quantized, and as `shard_`.
    """
    if name not in STYLES:
        raise ValueError(f"{_CALLED}: unknown style {name!r}; choose from {', '.join(STYLES)}")
    return _kind()(name)


@cache
def _kind() -> Any:
    """The class of these styles; torch's package of them takes a second to import."""
    from torch.distributed.tensor.parallel import ParallelStyle

    class QuantizedStyle(ParallelStyle):
        """Cuts one layer."""

        def __init__(self, name: str):
            super().__init__()
            self.name = name

        def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
            if not isinstance(module, QLayer):
                raise ValueError(
                    f"{_CALLED}({self.name!r}): a {type(module).__name__} is no quantized layer: "
                    "call bs.quantize_ or bs.load before parallelize_module, and use torch's own "
                    "styles (torch.distributed.tensor.parallel) for float layers"
                )
            holder = nn.ModuleDict({"layer": module})
            shared = module.qweight
            module._modules["weight"] = _copy(shared)
            try:
                deal_layers(holder, device_mesh.get_group(), {"layer": self.name})
            except ValueError as error:
                module._modules["weight"] = shared
                name = shared.name.removesuffix(".weight") or type(module).__name__
                told = str(error).replace("bs.parallel.shard_", _CALLED)
                raise ValueError(told.replace("'layer'", repr(name))) from None
            return module

        def __repr__(self) -> str:
            return f"{_CALLED}({self.name!r})"

    return QuantizedStyle


def _copy(weight: QWeight) -> QWeight:
    """The same codes, held by another module."""
    copy = QWeight(weight.tensor, tuple(weight.shape), weight.dtype, weight.layout)
    copy.name, copy.part = weight.name, weight.part
    return copy
