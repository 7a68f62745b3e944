# SPDX-License-Identifier: BSD-3-Clause
"""How sensitive a model's output is to each element of its weights: mean squared gradients.

Rounding moves a weight by d. To second order the damage grows by ½ dᵀHd, and errors of rounding
are nearly independent of each other, so that what counts of H is its diagonal. For the distance of
outputs and for KL divergence, H is a Gauss-Newton matrix, whose diagonal is the mean of squared
gradients of random numbers made of the output (`Objective.probe`). For a loss, those of the loss:
the empirical Fisher (Kunstner, Balles, Hennig, "Limitations of the empirical Fisher", 2019).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from blockscale.layers.guards.sample import call, device_of
from blockscale.selection.choices import Choice
from blockscale.selection.objective import Objective

_PROBES = 4  # of each batch


class Curvature:
    """The diagonal for each choice's weight, float32; a copy of the model's size."""

    def __init__(self, model: nn.Module, choices: Sequence[Choice]):
        self._model, self._choices = model, choices
        self.diagonals = [torch.zeros_like(c.parameter, dtype=torch.float32) for c in choices]
        self._names = _names(model, choices)
        self._count = 0

    def add(self, batch: Any, objective: Objective, generator: torch.Generator) -> None:
        """Squared gradients of one batch. Raises ValueError where the model has none."""
        leaves = [c.parameter.detach().requires_grad_() for c in self._choices]
        both = zip(self._names, leaves, strict=True)
        given = {name: leaf for names, leaf in both for name in names}
        with torch.enable_grad():
            other = _WithWeights(self._model, given)
            output = objective.of(call(other, batch, device_of(self._model)), batch)
            for probe in range(_PROBES):
                number = objective.probe(output, batch, generator)
                if not number.requires_grad:
                    raise ValueError(_FLAT)
                kept = probe + 1 < _PROBES
                found = torch.autograd.grad(number, leaves, retain_graph=kept, allow_unused=True)
                for total, gradient in zip(self.diagonals, found, strict=True):
                    if gradient is not None:
                        total.add_(gradient.detach().float().square())
                self._count += 1

    def damage(self, which: int, rounded: Tensor) -> float:
        """Of weight `which` of the choices, once it is `rounded`."""
        error = rounded.detach().float() - self._choices[which].parameter.detach().float()
        total = (self.diagonals[which] * error.square()).sum(dtype=torch.float64)
        return float(total) / max(self._count, 1)


_FLAT = (
    "the model's output has no gradients, so score='fisher' cannot work: use score='output', which "
    "runs the model once for each layer and candidate, or score='sqnr'"
)


class _WithWeights(nn.Module):
    """The model with other weights, whose own are not touched."""

    def __init__(self, model: nn.Module, weights: dict[str, Tensor]):
        super().__init__()
        self._held = [model]  # not as a child: its parameters are not these
        self._weights = weights

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return functional_call(self._held[0], self._weights, args, kwargs)


def _names(model: nn.Module, choices: Sequence[Choice]) -> list[list[str]]:
    """All names of each choice's parameter in the model."""
    every: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        every.setdefault(id(parameter), []).append(name)
    return [every[id(choice.parameter)] for choice in choices]
