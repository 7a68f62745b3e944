# SPDX-License-Identifier: BSD-3-Clause
"""Codes and scales as parameters, for engines that shard nothing but those (FSDP2)."""

from typing import TypeVar

import torch
from torch import nn

from blockscale.layers.guards import check_model
from blockscale.layers.store import QWeight

Model = TypeVar("Model", bound=nn.Module)

_TAKES_BYTES = (2, 12)  # of torch: its FSDP2 asks parameters of bytes for no gradient


def weights_of(model: nn.Module) -> list[QWeight]:
    """The quantized weights of a model, each once."""
    return [each for each in model.modules() if isinstance(each, QWeight)]


def check_torch(version: str) -> None:
    """Raise RuntimeError for a torch whose FSDP2 takes no parameters of bytes."""
    if tuple(int(n) for n in version.split(".")[:2]) < _TAKES_BYTES:
        raise RuntimeError(
            f"bs.parallel.as_parameters_: FSDP2 of torch {version} takes no parameters of "
            'bytes ("only Tensors of floating point dtype can require gradients"): use torch 2.13 '
            "or later, or leave the quantized layers whole on each process"
        )


def _came_late(weight: QWeight) -> bool:
    """Whether FSDP2 has seen a weight while its codes were buffers."""
    return not weight.frozen and getattr(weight, "_is_fsdp_managed_module", False)


def as_parameters_(model: Model, *, torch_version: str = torch.__version__) -> Model:
    """Let FSDP2 shard a quantized model: its codes and scales become parameters that take no
    gradient, under the names that they have. In place; call it before `fully_shard`.

    A process then keeps its part of every weight, and gathers the codes of a block for its forward
    and its backward. What else is in a state, a file or a result does not change. Optimizers leave
    such parameters alone, as all that have no gradient.

    model: with quantized layers, quantized or loaded; the same is returned
    torch_version: of the torch that will shard it

    Raises ValueError for a model without quantized weights, and where FSDP2 has some of them
    already; RuntimeError for a torch whose FSDP2 takes no parameters of bytes (2.11; 2.13 does).
    """
    check_model(model, "bs.parallel.as_parameters_")
    weights = weights_of(model)
    if not weights:
        raise ValueError(
            "bs.parallel.as_parameters_: the model has no quantized weights: call bs.quantize_ or "
            "bs.load first"
        )
    if late := [w.name for w in weights if _came_late(w)]:
        raise ValueError(
            f"bs.parallel.as_parameters_: fully_shard has been called for {len(late)} of the "
            f"model's weights, such as {late[0]!r}, and did not shard them: call as_parameters_ "
            "before it, on a model that is whole"
        )
    check_torch(torch_version)
    for weight in weights:
        weight.freeze()
    return model
