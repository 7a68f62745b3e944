# SPDX-License-Identifier: BSD-3-Clause
"""Where there is something to choose: the weights of a model, and what each may become."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from blockscale.core.layout import stored_bytes
from blockscale.layers.apply import plans_for
from blockscale.layers.layer import QLayer
from blockscale.layers.model.build import build
from blockscale.layers.parameters.planned import ParameterPlan, plan_parameters
from blockscale.layers.plan import Plan
from blockscale.layers.supplied import Supplied
from blockscale.selection.candidates import Candidate


@dataclass
class Choice:
    """One weight, which several layers may share, and what it may become.

    names: of all layers that have it, and their other names; kind: the first one's class
    shape: of the weight as it is stored; parameter: the float weight
    plans: {candidate's name: the plans of its layers}
    refused: {candidate's name: why it cannot be}
    """

    names: tuple[str, ...]
    kind: str
    shape: tuple[int, ...]
    parameter: Tensor
    plans: dict[str, tuple[Plan, ...]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The first of its layers' names."""
        return self.names[0]

    @property
    def elements(self) -> int:
        """Of the weight."""
        return self.parameter.numel()

    @property
    def float_bytes(self) -> int:
        """Of the weight as it is."""
        return stored_bytes(self.parameter)

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        """The float layers that have it."""
        return tuple(plan.module for plan in next(iter(self.plans.values())))

    @property
    def firsts(self) -> tuple[str, ...]:
        """The first name of each of them."""
        return tuple(plan.name for plan in next(iter(self.plans.values())))

    def bits(self, candidate: Candidate) -> int:
        """That the weight then takes, with scales and all, as stored."""
        assert candidate.scheme.weight is not None
        return 8 * candidate.scheme.weight.nbytes(self.shape)

    def layers(self, candidate: Candidate) -> dict[str, QLayer]:
        """{name: the quantized layer}, of all its names. Nothing is put into the model."""
        weights: dict[int, Any] = {}
        made: dict[str, QLayer] = {}
        for plan in self.plans[candidate.name]:
            layer, _ = build(plan, weights, Supplied(), None)
            made |= dict.fromkeys(plan.names, layer)
        return made


def choices(
    model: nn.Module, candidates: Sequence[Candidate], skip: Sequence[str] = ()
) -> tuple[list[Choice], dict[str, str]]:
    """The choices that a model gives, in its order, and {layer or parameter: why it has none}.

    A layer that a recipe of one format leaves in float has none, nor has a weight that some layer
    which shares it could not have. Raises ValueError where nothing is left to choose.
    """
    found: dict[int, Choice] = {}
    left: dict[str, str] = {}
    for candidate in candidates:
        recipe = candidate.recipe(tuple(skip))
        decisions = plans_for(model, recipe)
        for plan in decisions:
            if isinstance(plan, Plan):
                _add(found, plan, candidate)
            else:
                left.setdefault(plan.name, plan.entry.reason)
        for other in plan_parameters(model, decisions, recipe):
            if isinstance(other, ParameterPlan):
                left.setdefault(
                    other.name, "a parameter of no layer, which the search leaves alone"
                )
    for choice in found.values():
        for candidate in candidates:
            if candidate.name not in choice.plans:
                choice.refused[candidate.name] = left.get(choice.name, "it does not fit")
    named = {name for choice in found.values() for name in choice.names}
    if not found:
        reasons = "; ".join(f"{name}: {why}" for name, why in list(left.items())[:3])
        raise ValueError(f"no layer of the model can have any of the candidates ({reasons})")
    return list(found.values()), {name: why for name, why in left.items() if name not in named}


def _add(found: dict[int, Choice], plan: Plan, candidate: Candidate) -> None:
    """Take a layer's plan into the choice of its weight."""
    key = id(plan.parameter)
    if key not in found:
        kind = type(plan.module).__name__
        found[key] = Choice((), kind, tuple(plan.stored), plan.parameter)
    choice = found[key]
    choice.names = tuple(dict.fromkeys((*choice.names, *plan.names)))
    choice.plans[candidate.name] = (*choice.plans.get(candidate.name, ()), plan)
