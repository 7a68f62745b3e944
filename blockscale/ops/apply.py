"""quantize_: put quantized layers into a model, by a recipe, and say what became of every part."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from blockscale.core import reference
from blockscale.core.format import Format
from blockscale.core.layout import stored_shape, to_stored
from blockscale.core.ledger import Entry, Ledger
from blockscale.core.philox import named_seed
from blockscale.core.recipe import Recipe
from blockscale.ops.modules.layer import QLayer
from blockscale.ops.modules.store import QInput, QWeight
from blockscale.ops.plan import Plan, plan_layers, plan_others, replacement
from blockscale.ops.tensor import QTensor

Scales = Mapping[str, Tensor | QTensor | tuple[Tensor | QTensor, Tensor | None]]


def quantize_(
    model: nn.Module,
    recipe: Recipe | Format | str | Path,
    *,
    strict: bool = False,
    input_scales: Scales | None = None,
    seed: int | None = None,
) -> Ledger:
    """Quantize a model in place: its Linear, Conv1d, Conv2d, Embedding and Conv1D (GPT-2) layers.

    recipe: a Recipe; a Format, name or spelling quantizes weights only; a path of a JSON file.
    strict: raise SkippedError, before anything is changed, if something that the recipe covers
        cannot be quantized or a pattern matches nothing. Otherwise one warning names them.
    input_scales: {layer: stored scale, or (scale, zero point)} for static inputs.
    seed: for stochastic rounding of weights.

    Returns the Ledger: every layer and every other parameter, quantized with what, or why not.
    Layers that share one weight (tied embeddings) share its codes if all of them get one format.
    Raises ValueError for a recipe or scale that does not fit, before anything is changed.
    """
    if isinstance(model, QLayer) or replacement(model) is not None:
        raise ValueError(
            f"the model is itself a {type(model).__name__}, which cannot be replaced in place: "
            f"wrap it, e.g. in nn.Sequential(layer)"
        )
    recipe = Recipe.read(recipe)
    plans = plan_layers(model, recipe)
    inputs = _static_inputs(plans, input_scales or {})
    others = list(plan_others(model, plans, recipe))
    names = [name for plan in plans for name in plan.names] + [entry.name for entry in others]
    unmatched = recipe.unmatched(names)
    if strict:
        Ledger([*_entries(plans), *others], unmatched).raise_if_skipped()
    weights: dict[int, QWeight] = {}
    for plan in plans:
        if plan.entry.status == "quantized":
            _replace(model, plan, weights, inputs.get(plan.name), seed)
    ledger = Ledger([*_entries(plans), *others], unmatched)
    ledger.warn()
    return ledger


def _entries(plans: list[Plan]) -> list[Entry]:
    return [entry for plan in plans for entry in plan.entries()]


def _static_inputs(plans: list[Plan], scales: Scales) -> dict[str, QInput]:
    """{layer: its input's quantizer} for given scales. Raises ValueError for those that misfit."""
    takers = {
        name: plan
        for plan in plans
        for name in plan.names
        if plan.entry.status == "quantized"
        and plan.scheme.input
        and plan.kind
        and plan.kind.takes_input
    }
    found: dict[str, QInput] = {}
    for name, scale in scales.items():
        if name not in takers:
            raise ValueError(
                f"input_scales names {name!r}, but the recipe gives no such layer an input format"
            )
        plan = takers[name]
        assert plan.scheme.input is not None
        quantizer = QInput(plan.scheme.input)
        if plan.name in found:
            raise ValueError(f"input_scales names {name!r} and {plan.name!r}, which are one layer")
        try:
            value, zero_point = scale if isinstance(scale, tuple) else (scale, None)
            quantizer.set_scale(value, zero_point, _features(plan))
        except ValueError as error:
            raise ValueError(f"input_scales[{name!r}]: {error}") from None
        found[plan.name] = quantizer
    return found


def _features(plan: Plan) -> int:
    """The size of the dimension along which a layer's inputs are quantized."""
    assert plan.kind is not None and plan.parameter is not None
    channels: int | None = getattr(plan.module, "in_channels", None)
    return channels or stored_shape(plan.parameter.shape, plan.kind.layout)[-1]


def _replace(
    model: nn.Module,
    plan: Plan,
    weights: dict[int, QWeight],
    given: QInput | None,
    seed: int | None,
) -> None:
    """Swap in the quantized layer and say what it holds."""
    parameter, fmt = plan.parameter, plan.scheme.weight
    assert plan.kind is not None and parameter is not None and fmt is not None
    if plan.owns_weight:
        own = None if seed is None else named_seed(seed, f"{plan.name}.weight")
        weights[id(parameter)] = QWeight.quantize(parameter, fmt, plan.kind.layout, own)
    weight = weights[id(parameter)]
    layer = plan.kind.from_float(plan.module, weight, plan.scheme)
    if given is not None:
        layer.input = given.to(parameter.device)
    layer.take_place_of(plan.module)
    for name in plan.names:
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, layer)
    unused = plan.scheme.input is not None and layer.input is None
    reasons = ["shares the codes of a tied layer"] * (not plan.owns_weight)
    reasons += ["its input is indices, which have no format"] * unused
    plan.entry = replace(
        plan.entry,
        weight=weight.fmt,
        input="" if layer.input is None else layer.input.fmt,
        output="" if layer.output is None else layer.output.fmt,
        reason="; ".join(reasons),
        notes=tuple(_notes(parameter, fmt, plan.kind.layout)) if plan.owns_weight else (),
        bytes_after=plan.bytes_beside + (weight.nbytes if plan.owns_weight else 0),
    )


def _notes(weight: Tensor, fmt: Format, layout: str) -> list[str]:
    """What a user should know about a weight in this format."""
    stored = to_stored(weight.detach(), layout).to(torch.float32)
    notes = []
    if odd := int((~stored.isfinite()).sum()):
        notes.append(f"{odd} of {stored.numel()} weights are NaN or infinite")
    low, high, _ = reference.ranges(stored, fmt)
    if clipped := int(reference.scale_saturates(low, high, fmt).sum()):
        notes.append(f"{clipped} of {low.numel()} scales are outside the range of {fmt.scale}")
    return notes
