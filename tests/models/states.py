# SPDX-License-Identifier: BSD-3-Clause
"""What quantized models hold and compute, compared."""

import copy
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from blockscale.layers.layer import QBias, QLayer
from blockscale.layers.store import QWeight
from tests.models.registry import Inputs, tensors


def run(model: nn.Module, inputs: Inputs) -> list[Tensor]:
    """The floating point tensors that it gives for these inputs, on copies of them."""
    torch.manual_seed(2)
    with torch.no_grad():
        return [each.detach() for each in tensors(model(**copy.deepcopy(inputs)))]


def unequal_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors differ in shape, dtype or a bit."""
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return True
    flat = (each.detach().contiguous().reshape(-1).view(torch.uint8) for each in (a, b))
    return not torch.equal(*flat)


def differences(a: nn.Module, b: nn.Module) -> list[str]:
    """The names of state entries that differ in a bit, or that one of two models lacks."""
    left, right = a.state_dict(), b.state_dict()
    found = [f"{name} (in one only)" for name in sorted(left.keys() ^ right.keys())]
    for name in left.keys() & right.keys():
        one, other = left[name], right[name]
        both = isinstance(one, Tensor) and isinstance(other, Tensor)
        if unequal_bits(one, other) if both else one != other:
            found.append(name)
    return sorted(found)


def distance(a: list[Tensor], b: list[Tensor]) -> float:
    """The largest of the distances of tensors, each by the length of its second one.

    inf where they differ in number or shape, NaN where one is not finite.
    """
    if len(a) != len(b) or any(x.shape != y.shape for x, y in zip(a, b, strict=True)):
        return math.inf
    worst = 0.0
    for x, y in zip(a, b, strict=True):
        if not (x.isfinite().all() and y.isfinite().all()):
            return math.nan
        x, y = x.to(torch.float64), y.to(torch.float64)
        worst = max(worst, float((x - y).norm() / y.norm().clamp_min(1e-12)))
    return worst


def folded(model: nn.Module, like: nn.Module | None = None) -> nn.Module:
    """The model without the parametrizations that `like` lacks, by default without any."""
    others = {} if like is None else dict(like.named_modules())
    for name, module in list(model.named_modules()):
        if parametrize.is_parametrized(module) and not _parametrized(others.get(name)):
            for each in list(module.parametrizations):
                parametrize.remove_parametrizations(module, each)
    return model


def _parametrized(module: nn.Module | None) -> bool:
    return module is not None and parametrize.is_parametrized(module)


def twin(model: nn.Module, quantized: nn.Module) -> nn.Module:
    """The float model with the values that the quantized one stands for, as plain parameters."""
    folded(model, quantized)  # with gradients: without, torch makes no parameter of what it folds
    with torch.no_grad():
        for name, parameter in model.named_parameters(remove_duplicate=False):
            owner, _, attribute = name.rpartition(".")
            parameter.copy_(_value(quantized.get_submodule(owner), attribute))
    return model


def _value(owner: Any, attribute: str) -> Tensor:
    held = getattr(owner, attribute)
    if isinstance(owner, QLayer) and attribute == "bias" and owner.quantized_bias is not None:
        return owner.quantized_bias.dequantize()
    if hasattr(held, "codes"):  # a quantized weight, or what stands for it
        values: Tensor = held.dequantize()
        return values
    assert isinstance(held, Tensor)
    return held


def quantized_bytes(model: nn.Module) -> int:
    """Bytes of all codes and what stands beside them."""
    return sum(each.nbytes for each in _held(model))


def _held(model: nn.Module) -> Iterator[QWeight | QBias]:
    yield from (each for each in model.modules() if isinstance(each, QWeight | QBias))


def float_bytes(model: nn.Module) -> int:
    """Bytes of all parameters, each counted once."""
    return sum(each.nbytes for each in model.parameters())
