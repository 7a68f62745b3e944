# SPDX-License-Identifier: BSD-3-Clause
"""The steps of a search: each is kept in its state, so that a stopped one goes on after it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from blockscale.core.recipe import Recipe
from blockscale.selection.candidates import Candidate, WeightOptions
from blockscale.selection.choose import LayerChoice, LayerError, as_recipe, recipe_of
from blockscale.selection.errors import Errors, Laboratory, errors_of
from blockscale.selection.objective import Curvature, MeasuredObjective
from blockscale.selection.result import Point, SearchState
from blockscale.selection.times import inputs_of, layer_seconds


@dataclass(frozen=True)
class Request:
    """What of the call the steps need."""

    candidates: tuple[Candidate, ...]
    score: str
    budget: float
    points: tuple[float, ...]
    latency: float | None
    seed: int


Found = tuple[tuple[LayerChoice, ...], tuple[Point, ...], tuple[Point, ...], Point]


def run_search(
    lab: Laboratory, options: Sequence[WeightOptions], request: Request, state: SearchState
) -> Found:
    """The layers, the uniform points, the front's points and the point of the budget."""
    _announce(lab, options, request, state)
    lab.remember()
    errors, uniform = _candidates(lab, options, request, state)
    if request.score == "output":
        for candidate in request.candidates:
            _measure(candidate, options, errors[candidate.name], lab, state)
    times = {}
    if request.latency is not None:
        times = layer_seconds(
            inputs_of(lab.model, options, lab.batches[0]), options, request.candidates
        )
    layers = tuple(_layer(choice, request.candidates, errors, times) for choice in options)
    rest = (layers, options, request, lab, state)
    least = sum(min(e.bits for e in own.candidates) * own.elements for own in layers)
    least /= sum(own.elements for own in layers)
    front = [_point(budget, None, *rest) for budget in request.points if budget >= least]
    point = _point(request.budget, request.latency, *rest)
    every = {each.recipe: each for each in (*front, point)}
    return layers, uniform, tuple(sorted(every.values(), key=lambda p: p.bits)), point


def _announce(
    lab: Laboratory, options: Sequence[WeightOptions], request: Request, state: SearchState
) -> None:
    """Say how many runs of the model there will be, and how many were made before."""
    own, number = len(lab.batches), len(lab.holdout)
    runs = {_of(each): own + number for each in request.candidates}
    if request.score == "output":
        runs |= {
            _alone(each, choice): own
            for each in request.candidates
            for choice in options
            if each.name in choice.plans
        }
    earlier = sum(count for key, count in runs.items() if key in state)
    points = number * (len(request.points) + 1)
    lab.progress.start(sum(runs.values()) + points, earlier)


def _of(candidate: Candidate) -> str:
    return f"candidate {candidate.name}"


def _alone(candidate: Candidate, choice: WeightOptions) -> str:
    return f"alone {candidate.name} in {choice.name}"


def _candidates(
    lab: Laboratory, options: Sequence[WeightOptions], request: Request, state: SearchState
) -> tuple[dict[str, Errors], tuple[Point, ...]]:
    """The errors of every candidate in every layer, and what each gives in all of them."""
    curvature: Curvature | None = None
    errors: dict[str, Errors] = {}
    uniform = []
    for candidate in request.candidates:
        if _of(candidate) not in state:
            if curvature is None and request.score == "fisher":
                curvature = _curvature(lab, options, request.seed)
            layers, result = errors_of(candidate, options, lab, curvature)
            if not layers:
                raise ValueError(
                    f"no layer can be {candidate.name}: "
                    f"{next(iter(options)).refusals[candidate.name]}"
                )
            whole = lab.measure(result, lab.holdout)
            data = {"layers": layers, "damage": whole.damage, "quality": whole.quality}
            state[_of(candidate)] = data
        errors[candidate.name] = state[_of(candidate)]["layers"]
        uniform.append(_uniform(candidate, options, state[_of(candidate)], request.score))
    return errors, tuple(sorted(uniform, key=lambda p: p.bits))


def _curvature(lab: Laboratory, options: Sequence[WeightOptions], seed: int) -> Curvature:
    curvature = Curvature(lab.model, options)
    generator = torch.Generator().manual_seed(seed)
    for batch in lab.batches:
        curvature.add(batch, lab.objective, generator)
    return curvature


def _uniform(
    candidate: Candidate, options: Sequence[WeightOptions], data: Mapping[str, Any], score: str
) -> Point:
    """One candidate wherever it can be; the other layers stay in float, whose bits count."""
    own = {choice.names: candidate for choice in options if candidate.name in choice.plans}
    bits = sum(
        choice.bits(candidate) if choice.names in own else 8 * choice.float_bytes
        for choice in options
    )
    prediction = sum(each.get(score, 0.0) for each in data["layers"].values())
    total = sum(choice.elements for choice in options)
    return Point(
        bits / total, data["quality"], data["damage"], prediction, as_recipe(own),
        name=candidate.name,
    )  # fmt: skip


def _measure(
    candidate: Candidate,
    options: Sequence[WeightOptions],
    errors: Errors,
    lab: Laboratory,
    state: SearchState,
) -> None:
    """Into `errors`: the damage of one layer at a time in this candidate."""
    for choice in options:
        if candidate.name not in choice.plans:
            continue
        key = _alone(candidate, choice)
        if key not in state:
            layers: Mapping[str, nn.Module] = choice.layers(candidate)
            state[key] = lab.measure(layers, lab.batches).damage
        errors[choice.name] = errors[choice.name] | {"loss": state[key]}


def _layer(
    choice: WeightOptions,
    candidates: Sequence[Candidate],
    errors: Mapping[str, Errors],
    times: Mapping[tuple[str, str], float],
) -> LayerChoice:
    own = tuple(
        LayerError(
            candidate.name,
            choice.bits(candidate) / choice.elements,
            seconds=times.get((choice.name, candidate.name)),
            **errors[candidate.name][choice.name],
        )
        for candidate in candidates
        if candidate.name in choice.plans
    )
    return LayerChoice(
        choice.names, choice.kind, choice.shape, choice.elements, 8 * choice.float_bytes, own,
        dict(choice.refusals), times.get((choice.name, "")),
    )  # fmt: skip


def _point(  # noqa: PLR0913 - two budgets, and what all points share
    budget: float,
    latency: float | None,
    layers: tuple[LayerChoice, ...],
    options: Sequence[WeightOptions],
    request: Request,
    lab: Laboratory,
    state: SearchState,
) -> Point:
    """The best recipe within the budgets, and the quality that it then has."""
    choice = recipe_of(layers, request.candidates, request.score, budget, latency)
    key = f"recipe {choice.recipe.to_json()}"
    if key not in state:
        whole = measured_with(choice.recipe, options, request.candidates, lab)
        state[key] = {"damage": whole.damage, "quality": whole.quality}
    info = state[key]
    return Point(
        choice.bits, info["quality"], info["damage"], choice.damage, choice.recipe, budget,
        choice.gap, seconds=choice.seconds,
    )  # fmt: skip


def measured_with(
    recipe: Recipe,
    options: Sequence[WeightOptions],
    candidates: Sequence[Candidate],
    lab: Laboratory,
) -> MeasuredObjective:
    """Damage and quality of the model with a recipe that has a candidate for every choice."""
    layers: dict[str, nn.Module] = {}
    for each in options:
        layers |= each.layers(_candidate_of(recipe, each, candidates))
    return lab.measure(layers, lab.holdout)


def _candidate_of(
    recipe: Recipe, choice: WeightOptions, candidates: Sequence[Candidate]
) -> Candidate:
    scheme, _ = recipe.decide(choice.name)
    return next(each for each in candidates if each.scheme == scheme)
