# SPDX-License-Identifier: BSD-3-Clause
"""Float layers and parameters between quantized ones, cut as those are (docs/scale.md).

A recipe that leaves a layer in float leaves it in the model's plan: its pair gives and takes parts.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from blockscale.parallel.collectives import shared, summed
from blockscale.parallel.parts import Place, place


class FloatParameter(NamedTuple):
    """A float parameter that a plan names: the module that reads it, and its name there."""

    owner: nn.Module
    name: str

    @property
    def tensor(self) -> nn.Parameter:
        """The parameter itself."""
        parameter: nn.Parameter = self.owner._parameters[self.name]  # type: ignore[assignment]
        return parameter


class ColwiseFloat(nn.Linear):
    """Some of the outputs of a linear layer, of the whole input."""

    at: Place
    part: str

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in_features] -> [..., own outputs]."""
        return linear(shared(x, self.at.group), self.weight, self.bias)


class RowwiseFloat(nn.Linear):
    """Some of the inputs of a linear layer: products of parts are summed, and the bias is added."""

    at: Place
    part: str

    def forward(self, x: Tensor) -> Tensor:
        """x [..., own inputs] -> [..., out_features]."""
        y = summed(linear(x, self.weight), self.at.group)
        return y if self.bias is None else y + self.bias


_KINDS: dict[str, tuple[type[nn.Linear], int]] = {
    "colwise": (ColwiseFloat, 0),
    "rowwise": (RowwiseFloat, 1),
}
# styles of parameters: the dimension from the last of a matrix, and of how many parts it consists
_OF_PARAMETERS = {"colwise": (-2, 1), "packed_colwise": (-2, 2), "rowwise": (-1, 1)}


def refuses_float(what: Any, style: str) -> str:
    """Why a float layer, or a parameter, cannot be cut so; empty if it can."""
    if isinstance(what, FloatParameter):
        shape = tuple(what.tensor.shape)
        if style not in _OF_PARAMETERS:
            return f"it is a float parameter; those are {', '.join(_OF_PARAMETERS)}"
        dim, parts = _OF_PARAMETERS[style]
        if len(shape) < 2:
            return f"it is in float and has one dimension {shape}, which no style says how to cut"
        odd = shape[dim] % parts
        return f"{shape[dim]} rows cannot be divided into {parts} equal parts" if odd else ""
    if type(what) is nn.Linear and style in _KINDS:
        return ""
    told = f"it is in float and no nn.Linear ({type(what).__name__}), which could be cut there"
    return f"{told}: quantize it, too, or leave it and its pair out of the plan"


def put_float(what: Any, style: str, group: Any) -> None:
    """Let a float layer or parameter be this process's part of it, in place."""
    if isinstance(what, FloatParameter):
        dim, parts = _OF_PARAMETERS[style]
        own = _own(what.tensor, dim, parts, group)
        what.owner._parameters[what.name] = own
        return
    kind, dim = _KINDS[style]
    n = what.weight.shape[dim]
    what.at = place(group, n)
    what.part = f"{what.at.start} to {what.at.start + what.at.length} of {n}"
    for name in ("weight", "bias") if dim == 0 else ("weight",):
        if what._parameters[name] is not None:
            what._parameters[name] = _own(what._parameters[name], dim, 1, group)
    what.__class__ = kind


def _own(parameter: nn.Parameter, dim: int, parts: int, group: Any) -> nn.Parameter:
    """This process's part of each of so many equal parts along a dimension, in its own memory."""
    at = place(group, parameter.shape[dim] // parts)
    own = torch.cat([at.of(each, dim) for each in parameter.detach().chunk(parts, dim)], dim)
    return nn.Parameter(own, parameter.requires_grad)
