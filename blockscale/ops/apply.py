"""quantize_: put quantized layers into a model, by a recipe, and say what became of every part."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

from blockscale.core import reference
from blockscale.core.block import Blocks
from blockscale.core.discover import import_all
from blockscale.core.format import Format
from blockscale.core.layout import stored_shape, to_stored
from blockscale.core.ledger import Entry, Ledger
from blockscale.core.recipe import Recipe, Scheme, matches
from blockscale.ops import modules
from blockscale.ops.modules.layer import QLayer
from blockscale.ops.modules.store import QWeight
from blockscale.ops.tensor import QTensor

_KINDS: list[ModuleType] = [
    module
    for module in import_all(modules.__name__, modules.__path__)
    if hasattr(module, "replacement")
]

# Modules that read the weights of layers inside them without calling those layers.
_BYPASSES = {
    nn.MultiheadAttention: "nn.MultiheadAttention reads its weight without calling it",
    nn.TransformerEncoderLayer: "nn.TransformerEncoderLayer's fused path reads its weight without calling it",
}


def replacement(module: nn.Module) -> type[QLayer] | None:
    """The quantized layer that replaces a float layer of exactly this class, or None."""
    for kind in _KINDS:
        found: type[QLayer] | None = kind.replacement(type(module))
        if found is not None:
            return found
    return None


def quantize_(
    model: nn.Module,
    recipe: "Recipe | Format | str | Path",
    *,
    strict: bool = False,
    input_scales: "Mapping[str, Tensor | QTensor | tuple[Tensor | QTensor, Tensor | None]] | None" = None,
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
    plans = list(_plan(model, recipe))
    given = dict(input_scales or {})
    _check_scales(plans, given)
    if isinstance(model, QLayer) or replacement(model) is not None:
        raise ValueError(
            f"the model is itself a {type(model).__name__}, which cannot be replaced in place: wrap it, "
            f"e.g. in nn.Sequential(layer)"
        )
    entries = [plan.entry for plan in plans] + list(_others(model, plans, recipe))
    ledger = Ledger(entries, _unmatched(recipe, [entry.name for entry in entries]))
    if strict:
        ledger.raise_if_skipped()
    done: dict[int, QWeight] = {}
    for index, plan in enumerate(plans):
        if plan.entry.status == "quantized":
            ledger.entries[index] = _replace(model, plan, done, given, seed)
    ledger.warn()
    return ledger


class _Plan:
    """What is to happen to one layer."""

    def __init__(self, name: str, module: nn.Module, kind: type[QLayer] | None, scheme: Scheme):
        self.name, self.module, self.kind, self.scheme = name, module, kind, scheme
        self.parameter: Tensor | None = getattr(module, "weight", None) if kind else None
        bias = getattr(module, "bias", None)
        size = sum(p.nbytes for p in (self.parameter, bias) if p is not None) if kind else 0
        elements = self.parameter.numel() if self.parameter is not None else 0
        self.entry = Entry(
            name, type(module).__name__, "quantized", elements=elements, bytes_before=size, bytes_after=size
        )

    def stay(self, status: str, reason: str) -> None:
        self.entry = replace(self.entry, status=status, reason=reason)  # type: ignore[arg-type]


def _plan(model: nn.Module, recipe: Recipe) -> Iterator[_Plan]:
    """One plan for each layer that could be quantized or that looks as if it could."""
    plans = []
    for name, module in model.named_modules():
        if isinstance(module, QLayer):
            plan = _Plan(name, module, None, Scheme())
            plan.entry = replace(plan.entry, bytes_before=module.weight.nbytes, bytes_after=module.weight.nbytes)
            plan.stay("kept", "already quantized")
            plans.append(plan)
            continue
        kind = replacement(module)
        if kind is None and not _looks_like_a_layer(module):
            continue
        scheme, pattern = recipe.decide(name)
        plan = _Plan(name, module, kind, scheme)
        reason = None if kind is None else kind.refuses(module)
        if not scheme:
            plan.stay("kept", f"pattern {pattern!r} of the recipe" if pattern else "the recipe is empty")
        elif scheme.weight is None:
            plan.stay("kept", "the recipe gives its weight no format")
        elif reason := reason or _why_not(model, name, module, kind, scheme):
            plan.stay("skipped", reason)
        plans.append(plan)
    _settle_ties(plans)
    return iter(plans)


def _looks_like_a_layer(module: nn.Module) -> bool:
    """Subclasses and relatives of the layers we replace: they must not be passed over silently."""
    relatives = (nn.Linear, nn.Embedding, nn.EmbeddingBag, nn.Bilinear, nn.modules.conv._ConvNd, nn.RNNBase)
    return isinstance(module, relatives)


def _why_not(
    model: nn.Module, name: str, module: nn.Module, kind: type[QLayer] | None, scheme: Scheme
) -> str | None:
    """Why this layer cannot be quantized, or None."""
    if kind is None:
        name_of = type(module).__name__
        if isinstance(module, nn.Linear | nn.Embedding | nn.Conv1d | nn.Conv2d):
            return f"{name_of} is a subclass: a quantized layer would replace what it adds"
        return f"there is no quantized {name_of}"
    if "forward" in vars(module):
        return "its forward was replaced on the instance, which a quantized layer would undo"
    parent = model.get_submodule(name.rpartition(".")[0])
    if type(parent) in _BYPASSES:
        return _BYPASSES[type(parent)]  # type: ignore[index]
    weight = module.weight
    if getattr(module, "parametrizations", None) is not None:
        return "its weight is parametrized: remove the parametrization first"
    if not isinstance(weight, Tensor) or weight.device.type == "meta":
        return "its weight holds no data (meta device or lazy): load the weights first"
    if weight.dtype not in reference.FLOATS:
        return f"its weight is {str(weight.dtype).removeprefix('torch.')}; formats take float32, bfloat16, float16"
    try:
        assert scheme.weight is not None
        scheme.weight.block.scale_shape(stored_shape(weight.shape, kind.layout))
    except ValueError as error:
        return str(error)
    return None


def _settle_ties(plans: list[_Plan]) -> None:
    """Layers that share a weight are quantized together, in one format, or not at all."""
    owners: dict[int, list[_Plan]] = {}
    for plan in plans:
        if plan.parameter is not None:
            owners.setdefault(id(plan.parameter), []).append(plan)
    for shared in owners.values():
        if len(shared) == 1:
            continue
        wants = {(p.entry.status, str(p.scheme.weight), p.kind and p.kind.layout) for p in shared}
        if len(wants) == 1:
            continue
        for plan in shared:
            if plan.entry.status == "quantized":
                others = ", ".join(p.name for p in shared if p is not plan)
                plan.stay("skipped", f"its weight is tied to {others}, which the recipe treats otherwise")


def _check_scales(plans: list[_Plan], given: Mapping[str, object]) -> None:
    takers = {p.name for p in plans if p.entry.status == "quantized" and p.scheme.input}
    if unknown := sorted(set(given) - takers):
        raise ValueError(
            f"input_scales names {unknown[0]!r}, which is no layer that the recipe gives an input format"
        )


def _replace(
    model: nn.Module,
    plan: _Plan,
    done: dict[int, QWeight],
    given: Mapping[str, object],
    seed: int | None,
) -> Entry:
    """Swap in the quantized layer and say what it holds."""
    assert plan.kind is not None and plan.parameter is not None and plan.scheme.weight is not None
    tied = id(plan.parameter) in done
    if not tied:
        done[id(plan.parameter)] = QWeight.quantize(plan.parameter, plan.scheme.weight, plan.kind.layout, seed)
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
    bias = 0 if layer.bias is None else layer.bias.nbytes
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


def _others(model: nn.Module, plans: list[_Plan], recipe: Recipe) -> Iterator[Entry]:
    """The parameters that belong to no layer of a plan."""
    ours = {id(p) for plan in plans for p in plan.module.parameters(recurse=False)}
    ours |= {id(p) for m in model.modules() if isinstance(m, QLayer) for p in m.parameters()}
    for name, parameter in model.named_parameters():
        if id(parameter) in ours:
            continue
        owner = type(model.get_submodule(name.rpartition(".")[0])).__name__
        entry = Entry(name, f"parameter of {owner}", "kept", elements=parameter.numel(),
                      bytes_before=parameter.nbytes, bytes_after=parameter.nbytes)  # fmt: skip
        scheme, pattern = recipe.decide(name)
        if parameter.ndim < 2:
            yield replace(entry, reason="a vector, such as a norm's weight or a bias")
        elif not scheme.weight:
            yield replace(entry, reason=f"pattern {pattern!r} of the recipe" if pattern else "no weight format")
        else:
            reason = f"{owner} uses it directly, not through a layer that can hold codes"
            yield replace(entry, status="skipped", reason=reason)


def _unmatched(recipe: Recipe, names: list[str]) -> tuple[str, ...]:
    """The recipe's patterns that no name matches."""
    patterns = (*recipe.skip, *recipe.rules)
    return tuple(p for p in patterns if not any(matches(p, name) for name in names))
