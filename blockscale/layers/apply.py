# SPDX-License-Identifier: BSD-3-Clause
"""quantize_: put quantized layers into a model, by a recipe, and say what became of every part."""

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.core.format import Format
from blockscale.core.ledger import Entry, Ledger, SkippedError
from blockscale.core.pack import stored_shape, to_stored
from blockscale.core.profiles import Profile
from blockscale.core.recipe import Recipe
from blockscale.core.untrusted import kind_of
from blockscale.core.weight_scheme import for_rows
from blockscale.layers.assembly import (
    Scales,
    Supplied,
    build,
    parameters_in_codes,
    settle_top,
    supplied,
    without_dynamic,
)
from blockscale.layers.before import Before
from blockscale.layers.computed import folded
from blockscale.layers.guards import check_flag, check_whole, ordinary_tensors, replacing
from blockscale.layers.kinds import quantized_class
from blockscale.layers.layer import QLayer
from blockscale.layers.model import (
    announce,
    let_embeddings_be_resized,
    sent_by_no_forward,
    tell_names,
    without_wrappers,
)
from blockscale.layers.model import swap as swap
from blockscale.layers.parameters import (
    ParameterPlan,
    entries_of,
    plan_others,
    plan_parameters,
    put_weights,
)
from blockscale.layers.plan import Decision, Plan, plan_layers, without_slow
from blockscale.layers.saturation import odd_values_note
from blockscale.layers.store import QWeight
from blockscale.layers.trial import trial
from blockscale.ops.quantize import quantize
from blockscale.ops.tensor import QTensor


def quantize_(
    model: nn.Module,
    recipe: Recipe | Format | Profile | str | Path,
    *,
    strict: bool = False,
    input_scales: Scales | None = None,
    output_scales: Scales | None = None,
    weights: Mapping[str, QTensor] | None = None,
    before: Mapping[str, Before] | None = None,
    seed: int | None = None,
    sample: Any = None,
    faster: bool = False,
) -> Ledger:
    """Quantize a model in place: its Linear, Embedding, convolution and Conv1D (GPT-2) layers, and
    other parameters of two and more dimensions where that is safe (layers.decisions).

    A weight that the model's own code reads (`F.linear(x, self.fc.weight)`) gives a tensor of the
    float weight's shape and dtype (layers.weight_tensor).

    recipe: a Recipe, a preset's name, or the path of its JSON; a Format, name, spelling or Profile:
        weights only. Of a recipe that asks for a calibration (`bs.preset`) weights are rounded
        plainly here, which the ledger and a warning say.
    strict: raise SkippedError, before anything is changed, if something that the recipe covers
        cannot be quantized or has NaN or infinite weights, or a pattern matches nothing. Otherwise
        one warning names them. Also raised for a recipe that asks for a calibration.
    input_scales, output_scales: {layer: stored scale, or (scale, zero point), or (scale, zero
        point, offset)}, for static ones.
    weights: {layer: its weight's codes, in the stored layout (blockscale.core.pack)}.
    before: {layer: a Before module}, what its input goes through first; its weight is quantized
        after `to_weight`, unless it is in `weights`.
    seed: for stochastic rounding of weights.
    sample: an input to run the quantized model on, as `bs.calibrate` takes a batch: (x,), x or
        {"x": x}. Where the model cannot run, RuntimeError names the layer and what to skip.
    faster: leave layers on the CPU in float whose kernels are not sure to be faster in these
        formats (Entry.here); the ledger has the figure and the reason.

    Returns the Ledger: every layer and every other parameter, quantized with what, or why not.
    Layers that share one weight (tied embeddings) share its codes if all of them get one format.
    Raises ValueError for a recipe, scale, weight or module that does not fit, and for a model that
    is sharded (DTensor) or dispatched (accelerate); TypeError for what is no model, and a `faster`
    that is no bool. Whatever is raised, the model is unchanged.
    """
    check_whole(model, "bs.quantize_")
    check_flag("bs.quantize_", "faster", faster)
    recipe, weights = read_recipe(model, recipe, weights, before)
    recipe, notes = without_data(recipe, strict=strict)
    with (
        without_wrappers(model) as plain,
        ordinary_tensors(),
        replacing(plain, "bs.quantize_"),
        nullcontext() if sample is None else trial(plain, sample),
        folded(plain, recipe) as folding,
    ):
        plans = plans_for(plain, recipe)
        plans = without_slow(plans) if faster else plans
        places = supplied(plans, input_scales, output_scales, weights, before)
        ledger = apply(plain, plans, recipe, places, strict=strict, seed=seed)
    ledger = replace(folding.with_details(ledger), notes=notes)
    ledger.warn()
    return ledger


def plans_for(model: nn.Module, recipe: Recipe) -> list[Decision]:
    """What is to become of each layer. Raises ValueError for a model that is itself a layer."""
    if isinstance(model, QLayer) or quantized_class(model) is not None:
        raise ValueError(
            f"the model is itself {kind_of(model)}, which cannot be replaced in place: "
            f"wrap it, e.g. in nn.Sequential(layer)"
        )
    return plan_layers(model, recipe)


def apply(
    model: nn.Module,
    plans: Sequence[Decision],
    recipe: Recipe,
    places: Mapping[str, Supplied],
    *,
    strict: bool = False,
    seed: int | None = None,
    parameters: bool = True,
    qweights: Mapping[str, QWeight] | None = None,
    ready: Mapping[str, tuple[QLayer, Entry]] | None = None,
) -> Ledger:
    """Do what the plans say, all of it or nothing; the ledger has not warned yet.

    places: {first name of a layer: what is supplied for it}, of every Plan; and of stacks of
        experts that have static inputs.
    parameters: quantize those of no layer as well, where they are; a program's stay as they are.
    made: {first name of such a parameter: its codes}, where they are there already.
    ready: {first name of a layer: what `build` gave}, where that is there already.

    Raises SkippedError, before anything is changed, if strict asks for it.
    """
    plans = without_dynamic(plans, lambda plan: places[plan.name].input is not None)
    planned = list((plan_parameters if parameters else plan_others)(model, plans, recipe))
    check(plans, planned, recipe, strict=strict, places=places)
    layers, entries = _layers(plans, places, seed, ready or {})
    ours = [each for each in planned if isinstance(each, ParameterPlan)]
    own_parts = parameters_in_codes(ours, places, qweights or {}, seed)
    _change(model, layers, ours, [weight for weight, _ in own_parts.values()])
    tell_names(model)
    let_embeddings_be_resized(model)
    sent_by_no_forward(model)
    announce(model, recipe)
    others = [
        own_parts[each.name][1] if each.name in own_parts else each for each in entries_of(planned)
    ]
    return ledger_of(plans, others, recipe, entries)


def _layers(
    plans: Sequence[Decision],
    places: Mapping[str, Supplied],
    seed: int | None,
    ready: Mapping[str, tuple[QLayer, Entry]],
) -> tuple[dict[str, nn.Module], dict[str, Entry]]:
    """{name: quantized layer} and {first name: its entry}, those of `ready` included."""
    weights: dict[int, QWeight] = {}
    layers: dict[str, nn.Module] = {}
    entries: dict[str, Entry] = {}
    by_name = {plan.name: plan for plan in plans if isinstance(plan, Plan)}
    for plan in plans:
        if isinstance(plan, Plan):
            if plan.name not in ready:
                settle_top(plan, by_name, places)
            result = ready.get(plan.name) or build(plan, weights, places[plan.name], seed)
            layer, entries[plan.name] = result
            weights.setdefault(id(plan.parameter), layer.qweight)
            if plan.name in ready:  # they were built in evaluation mode
                layer.train(plan.module.training)
            layers |= dict.fromkeys(plan.names, layer)
    return layers, _agreeing(plans, layers, entries)


def _agreeing(
    plans: Sequence[Decision], layers: Mapping[str, Any], entries: dict[str, Entry]
) -> dict[str, Entry]:
    """The entries, with a note where layers that share an outer scale do not have the same."""
    for group in {
        plan.outer_group: None for plan in plans if isinstance(plan, Plan) and plan.outer_group
    }:
        outers = {name: layers[name].qweight.qparams.outer for name in group}
        for name, note in disagreeing(outers).items():
            entries[name] = replace(entries[name], notes=(*entries[name].notes, note))
    return entries


def _change(
    model: nn.Module,
    layers: Mapping[str, nn.Module],
    plans: Sequence[ParameterPlan],
    weights: Sequence[QWeight],
) -> None:
    """Put in layers and parameters, all or none."""
    old = swap(model, layers)
    try:
        put_weights(model, plans, weights)
    except BaseException:
        swap(model, old)
        raise


def check(
    plans: Sequence[Decision],
    planned: Sequence[ParameterPlan | Entry],
    recipe: Recipe,
    *,
    strict: bool,
    places: Mapping[str, Supplied] | None = None,
) -> None:
    """Raise SkippedError if strict asks for it and not everything can be quantized, or a weight is
    not finite.

    places: what is supplied; the float weight of a layer whose codes are says nothing
    """
    if strict:
        names = {name for name, place in (places or {}).items() if place.weight is not None}
        odd = {entry.name: entry for entry in mismatches(plans, planned, names)}
        others = [odd.get(entry.name, entry) for entry in entries_of(planned)]
        ledger_of(plans, others, recipe, odd).raise_if_skipped()


# Weights that are NaN or infinite: formats hide most of them, so `strict` refuses them.


def mismatches(
    decisions: Sequence[Decision],
    planned: Sequence[ParameterPlan | Entry] = (),
    supplied: Container[str] = (),
) -> Iterator[Entry]:
    """An entry, skipped, for each layer and parameter whose weight is not finite.

    supplied: names of layers whose codes are given, so that the float weight says nothing
    """
    plans: list[Plan | ParameterPlan] = [
        each for each in decisions if isinstance(each, Plan) and each.owns_weight
    ]
    plans += [each for each in planned if isinstance(each, ParameterPlan)]
    for plan in plans:
        problem = "" if plan.name in supplied else odd_values_note(plan.parameter.detach())
        bias = plan.module._parameters.get("bias") if isinstance(plan, Plan) else None
        if bias is not None and (of_bias := odd_values_note(bias.detach())):
            problem = "; ".join(filter(None, [problem, of_bias.replace("weights", "biases")]))
        if problem:
            yield replace(plan.entry, status="skipped", reason=problem)


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
            if (choice := recipe.decide(name)[0].profile) is not None:
                raise ValueError(
                    f"weights[{name!r}]: the recipe's profile {choice} chooses the codes of "
                    "this layer: leave these out, or set their format for the layer"
                )
        return recipe, weights
    if weights is not None or before is not None:
        raise ValueError(
            f"profile {source}: it quantizes the original float weights, so weights and "
            "before cannot be passed: make them with bs.quantize, and pass a recipe"
        )
    return read_profile(model, source)


# A model's weights as a producer quantizes them: what bs.quantize_ makes of a profile.


def read_profile(model: nn.Module, profile: Profile) -> tuple[Recipe, dict[str, QTensor]]:
    """The recipe that a profile stands for, and {layer: its weight's codes}, every layer.

    Parameters of no layer are left in float: nothing but a layer is given codes.
    Raises ValueError, with the layer's name, for a weight that the producer refuses.
    """
    with without_wrappers(model) as plain:
        plans = plan_layers(plain, Recipe(weight=profile.format))
        layers = [plan for plan in plans if isinstance(plan, Plan)]
        own = {id(parameter) for plan in plans for parameter in plan.owned}
        by_name = {plan.name: _choose(plan, profile) for plan in layers}
        weights = {p.name: _quantize(p, by_name[p.name]) for p in layers if p.owns_weight}
        others = [
            name
            for name, parameter in plain.named_parameters()
            if id(parameter) not in own and parameter.ndim > 1
        ]
    formats = {plan.name: by_name[plan.name].result(plan.parameter.dtype) for plan in layers}
    rules = {name: fmt for name, fmt in formats.items() if fmt != profile.format}
    return Recipe(weight=profile.format, rules=rules, skip=others), weights


def _choose(plan: Plan, profile: Profile) -> Profile:
    """The profile, or what its producer takes for rows that it does not fit."""
    return for_rows(profile, stored_shape(tuple(plan.parameter.shape), plan.layout))


def _quantize(plan: Plan, profile: Profile) -> QTensor:
    try:
        return quantize(to_stored(plan.parameter.detach(), plan.layout), profile)
    except ValueError as error:
        raise ValueError(
            f"{plan.name}: {error}: quantize the weights that it supports one at a time, and "
            "pass them as `weights` of bs.quantize_"
        ) from None


# The ledger of a model that is being quantized: from the decisions, and from what was done.


def without_data(recipe: Recipe, *, strict: bool) -> tuple[Recipe, tuple[str, ...]]:
    """What a recipe is where there is no data, and notes for the ledger.

    Raises SkippedError where `strict` and the recipe asks for a calibration.
    """
    recipe, notes = recipe.uncalibrated()
    if strict and notes:
        raise SkippedError(f"strict: {notes[0]}; nothing was changed")
    return recipe, notes


def ledger_of(
    decisions: Sequence[Decision],
    others: Sequence[Entry],
    recipe: Recipe,
    results: Mapping[str, Entry] | None = None,
) -> Ledger:
    """What becomes of every layer, and of the parameters that belong to none (`others`).

    results: {first name of a layer: its entry}, for the layers of which there is more to say than
        their decision knew.
    """
    entries = [
        entry
        for decision in decisions
        for entry in _of_every_name(decision, (results or {}).get(decision.name, decision.entry))
    ]
    names = [name for decision in decisions for name in decision.names]
    names += [entry.name for entry in others]
    if recipe.has_biases:
        biased = [each for each in decisions if each.module._parameters.get("bias") is not None]
        names += [f"{name}.bias" for each in biased for name in each.names]
    return Ledger([*entries, *others], recipe.unmatched(names))


def _of_every_name(decision: Decision, entry: Entry) -> Iterator[Entry]:
    """A layer's entry, one for a bias that could not be quantized with it, and one for each further
    name that the layer has in the model."""
    yield entry
    if isinstance(decision, Plan) and decision.bias_left:
        kind, text = f"bias of {entry.kind}", f"bias left in float: {decision.bias_left}"
        yield Entry(f"{entry.name}.bias", kind, "skipped", reason=text)
    same = f"the same layer as {decision.name}"
    again = replace(entry, reason=same, notes=(), elements=0, bytes_before=0, bytes_after=0)
    for name in decision.names[1:]:
        yield replace(again, name=name)


def disagreeing(outers: Mapping[str, Tensor | None]) -> dict[str, str]:
    """{name: what is to be noted} of weights that share an outer scale and do not have the same."""
    data = {name: outer for name, outer in outers.items() if outer is not None}
    first = next(iter(data.values()), None)
    if first is None or all(_same(first, outer) for outer in data.values()):
        return {}
    text = (
        "its outer scale differs from that of {}, whose codes were passed in: servers that "
        "join them keep only one"
    )
    return {name: text.format(", ".join(n for n in data if n != name)) for name in data}


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b.to(a.device))
