# SPDX-License-Identifier: BSD-3-Clause
"""A model's weights as a producer quantizes them: what bs.quantize_ makes of a profile."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from blockscale.core.pack import stored_shape, to_stored
from blockscale.core.profiles import Profile
from blockscale.core.recipe import Recipe
from blockscale.core.weight_scheme import for_rows
from blockscale.layers.before import Before
from blockscale.layers.model import unwrapped
from blockscale.layers.plan import Plan, plan_layers
from blockscale.ops.quantize import quantize
from blockscale.ops.tensor import QTensor


def read_recipe(
    model: nn.Module,
    source: Any,
    weights: Mapping[str, QTensor] | None,
    before: Mapping[str, Before] | None,
) -> tuple[Recipe, Mapping[str, QTensor] | None]:
    """What bs.quantize_ was given -> the recipe, and the codes of weights, which a profile makes.

    Raises ValueError for a profile beside weights or modules that change them, and as `profiled`
    and Recipe.read do.
    """
    if not isinstance(source, Profile):
        recipe = Recipe.read(source)
        for name in weights or ():
            if (chosen := recipe.decide(name)[0].profile) is not None:
                raise ValueError(
                    f"weights[{name!r}]: the recipe's profile {chosen} chooses the codes of "
                    "this layer: leave these out, or set their format for the layer"
                )
        return recipe, weights
    if weights is not None or before is not None:
        raise ValueError(
            f"profile {source}: it quantizes the original float weights, so weights and "
            "before cannot be passed: make them with bs.quantize, and pass a recipe"
        )
    return profiled(model, source)


def profiled(model: nn.Module, profile: Profile) -> tuple[Recipe, dict[str, QTensor]]:
    """The recipe that a profile stands for, and {layer: its weight's codes}, every layer.

    Parameters of no layer are left in float: nothing but a layer is given codes.
    Raises ValueError, with the layer's name, for a weight that the producer refuses.
    """
    with unwrapped(model) as plain:
        plans = plan_layers(plain, Recipe(weight=profile.format))
        layers = [plan for plan in plans if isinstance(plan, Plan)]
        owned = {id(parameter) for plan in plans for parameter in plan.owned}
        chosen = {plan.name: _chosen(plan, profile) for plan in layers}
        weights = {p.name: _coded(p, chosen[p.name]) for p in layers if p.owns_weight}
        others = [
            name
            for name, parameter in plain.named_parameters()
            if id(parameter) not in owned and parameter.ndim > 1
        ]
    formats = {plan.name: chosen[plan.name].result(plan.parameter.dtype) for plan in layers}
    rules = {name: fmt for name, fmt in formats.items() if fmt != profile.format}
    return Recipe(weight=profile.format, rules=rules, skip=others), weights


def _chosen(plan: Plan, profile: Profile) -> Profile:
    """The profile, or what its producer takes for rows that it does not fit."""
    return for_rows(profile, stored_shape(tuple(plan.parameter.shape), plan.layout))


def _coded(plan: Plan, profile: Profile) -> QTensor:
    try:
        return quantize(to_stored(plan.parameter.detach(), plan.layout), profile)
    except ValueError as error:
        raise ValueError(
            f"{plan.name}: {error}: quantize the weights that it supports one at a time, and "
            "pass them as `weights` of bs.quantize_"
        ) from None
