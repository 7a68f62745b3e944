"""quantize_: put quantized layers into a model, by a recipe, and say what became of every part."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from blockscale.core import reference
from blockscale.core.block import Blocks
from blockscale.core.format import Format
from blockscale.core.layout import to_stored
from blockscale.core.ledger import Entry, Ledger
from blockscale.core.recipe import Recipe
from blockscale.ops.modules.layer import QLayer
from blockscale.ops.modules.store import QWeight
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
    recipe = Recipe.read(recipe)
    plans = plan_layers(model, recipe)
    given = dict(input_scales or {})
    _check_scales(plans, given)
    if isinstance(model, QLayer) or replacement(model) is not None:
        raise ValueError(
            f"the model is itself a {type(model).__name__}, which cannot be replaced in place: "
            f"wrap it, e.g. in nn.Sequential(layer)"
        )
    entries = [plan.entry for plan in plans] + list(plan_others(model, plans, recipe))
    ledger = Ledger(entries, recipe.unmatched(entry.name for entry in entries))
    if strict:
        ledger.raise_if_skipped()
    done: dict[int, QWeight] = {}
    for index, plan in enumerate(plans):
        if plan.entry.status == "quantized":
            ledger.entries[index] = _replace(model, plan, done, given, seed)
    ledger.warn()
    return ledger


def _check_scales(plans: list[Plan], given: Mapping[str, object]) -> None:
    takers = {p.name for p in plans if p.entry.status == "quantized" and p.scheme.input}
    if unknown := sorted(set(given) - takers):
        raise ValueError(
            f"input_scales names {unknown[0]!r}, but the recipe gives no such layer an input format"
        )


def _replace(
    model: nn.Module,
    plan: Plan,
    done: dict[int, QWeight],
    given: Mapping[str, object],
    seed: int | None,
) -> Entry:
    """Swap in the quantized layer and say what it holds."""
    assert plan.kind is not None and plan.parameter is not None and plan.scheme.weight is not None
    tied = id(plan.parameter) in done
    if not tied:
        done[id(plan.parameter)] = QWeight.quantize(
            plan.parameter, plan.scheme.weight, plan.kind.layout, seed
        )
    weight = done[id(plan.parameter)]
    layer = plan.kind.from_float(plan.module, weight, plan.scheme)
    if plan.name in given and layer.input is not None:
        scale = given[plan.name]
        layer.input.set_scale(*scale if isinstance(scale, tuple) else (scale,))
    layer.train(plan.module.training)
    notes = [] if tied else _notes(plan.parameter, plan.scheme.weight, plan.kind.layout)
    for hooks in ("_forward_hooks", "_forward_pre_hooks"):
        getattr(layer, hooks).update(getattr(plan.module, hooks))
    unused = plan.scheme.input is not None and layer.input is None
    parent, _, child = plan.name.rpartition(".")
    setattr(model.get_submodule(parent), child, layer)
    bias = layer.bias_bytes
    return replace(
        plan.entry,
        weight=weight.fmt,
        input="" if layer.input is None else layer.input.fmt,
        output="" if layer.output is None else layer.output.fmt,
        reason="; ".join(
            ["shares the codes of a tied layer"] * tied
            + ["its input is indices, which have no format"] * unused
        ),
        notes=tuple(notes),
        bytes_before=bias if tied else plan.entry.bytes_before,
        bytes_after=bias + (0 if tied else weight.nbytes),
    )


def _notes(weight: Tensor, fmt: Format, layout: str) -> list[str]:
    """What a user should know about a weight in this format."""
    stored = to_stored(weight.detach(), layout).to(torch.float32)
    notes = []
    if odd := int((~stored.isfinite()).sum()):
        notes.append(f"{odd} of {stored.numel()} weights are NaN or infinite")
    low, high = Blocks(stored, fmt.block).range()
    if clipped := int(reference.scale_saturates(low, high, fmt).sum()):
        notes.append(f"{clipped} of {low.numel()} scales are outside the range of {fmt.scale}")
    return notes
