# SPDX-License-Identifier: BSD-3-Clause
"""What was measured of each layer, and from there to a recipe under budgets."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from blockscale.core.recipe import Recipe
from blockscale.selection.allocation import Option, allocate
from blockscale.selection.candidates import Candidate

_WORST = 1e30


@dataclass(frozen=True)
class LayerError:
    """One layer in one candidate.

    bits: a weight's element, with its share of scales and all else that is stored
    sqnr: of the layer's own output under the float model's inputs, in dB; NaN if it was not called
    fisher: damage to the model's output by its curvature, to second order; None if not asked for
    loss: damage as measured, with this layer alone in this candidate; None if not asked for
    seconds: of the layer for one batch, on this machine; None if not asked for
    """

    format: str
    bits: float
    sqnr: float
    fisher: float | None = None
    loss: float | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class LayerChoice:
    """One weight. names: of the layers that share it; refused: {candidate: why it cannot be}."""

    names: tuple[str, ...]
    kind: str
    shape: tuple[int, ...]
    elements: int
    float_bits: int
    candidates: tuple[LayerError, ...]
    refused: dict[str, str] = field(default_factory=dict)
    seconds: float | None = None

    @property
    def name(self) -> str:
        """The first of its names."""
        return self.names[0]

    def __getitem__(self, candidate: str) -> LayerError:
        """Its errors in a candidate. Raises KeyError."""
        for each in self.candidates:
            if each.format == candidate:
                return each
        raise KeyError(candidate)


def recipe_of(
    layers: Sequence[LayerChoice],
    candidates: Sequence[Candidate],
    score: str,
    budget: float,
    latency: float | None = None,
) -> "ChosenRecipe":
    """The recipe with the least score within the budgets."""
    if latency is not None and any(
        each.seconds is None for own in layers for each in own.candidates
    ):
        raise ValueError(
            "the search measured no times: pass latency=… to bs.search to measure them"
        )
    total = sum(each.elements for each in layers)
    options = [
        [
            Option(damage(each, score, own), each.bits * own.elements, each.seconds or 0.0)
            for each in own.candidates
        ]
        for own in layers
    ]
    result = allocate(options, budget * total, latency)
    schemes = {each.name: each for each in candidates}
    by_names = {
        own.names: schemes[own.candidates[i].format]
        for own, i in zip(layers, result.choices, strict=True)
    }
    seconds = None if latency is None else result.seconds
    return ChosenRecipe(
        as_recipe(by_names), result.bits / total, result.damage, result.gap, seconds
    )


class ChosenRecipe(NamedTuple):
    """A recipe, bits a weight on average, its score in all, Allocation's gap, seconds if timed."""

    recipe: Recipe
    bits: float
    damage: float
    gap: float
    seconds: float | None


def damage(error: LayerError, score: str, layer: LayerChoice) -> float:
    """What the choice is made by: never below 0, and finite."""
    if score == "sqnr":  # of noise to signal; each layer counts by its share of the weights
        value = layer.elements * 10 ** (-error.sqnr / 10) if not math.isnan(error.sqnr) else 0.0
    else:
        value = getattr(error, {"output": "loss"}.get(score, score))
    return min(max(value, 0.0), _WORST)


def as_recipe(by_names: Mapping[tuple[str, ...], Candidate]) -> Recipe:
    """A recipe that names every layer, those inside of others first: a pattern covers all below."""
    rules: dict[str, Any] = {name: each.rule for names, each in by_names.items() for name in names}
    order = sorted(rules, key=lambda name: (-name.count("."), list(rules).index(name)))
    return Recipe(rules={literal(name): rules[name] for name in order})


def literal(name: str) -> str:
    """The pattern that matches a name and what is below it."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)
