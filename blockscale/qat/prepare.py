"""prepare_qat: turn a model's layers into layers that train as they will be quantized."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from blockscale.calibrate import observers
from blockscale.core.format import Format
from blockscale.core.ledger import Entry, Ledger
from blockscale.core.philox import named_seed
from blockscale.core.recipe import PARTS, Recipe
from blockscale.layers.plan import Plan, plan_layers, plan_others, quantized_class
from blockscale.qat import learned
from blockscale.qat.folding import Pairs, find_pairs
from blockscale.qat.layers import QATLayer, trained
from blockscale.qat.quantizers import ActivationQuantizer, WeightQuantizer

Learn = str | Mapping[str, str | None] | None


def prepare_qat(
    model: nn.Module,
    recipe: Recipe | Format | str | Path,
    *,
    strict: bool = False,
    fuse: str | Pairs | None = "auto",
    learn: Learn = None,
    observer: observers.Spec | None = "moving_average",
) -> nn.Module:
    """Prepare a float model for training with fake quantization, in place; returns it.

    recipe, strict: as in `bs.quantize_`. `bs.qat.ledger(model)` says what became of every layer.
    fuse: batch norms to fold into the convolutions before them: "auto", pairs of names, or None.
    learn: "steps" (LSQ) or "thresholds" (TQT), learned scales of weights and of inputs and outputs
        whose block is `tensor` or `channel-1`; or {"weight": ..., "input": ..., "output": ...}.
    observer: chooses the scale of inputs and outputs with such blocks (calibrate.observers); None:
        each tensor chooses its own, as with all other blocks.

    Parameters, names, modes, hooks and all settings stay: an optimizer made before still works, a
    float state_dict loads. Prepare before DDP, FSDP, torch.compile. One warning names the skipped.

    Raises SkippedError (strict) and ValueError before anything is changed.
    """
    recipe, learning = Recipe.read(recipe), _learning(learn)
    plans, others = _plans(model, recipe)
    if strict:
        _ledger(plans, others, recipe).raise_if_skipped()
    going = {plan.name: plan for plan in plans if plan.entry.status == "quantized"}
    pairs, note = find_pairs(model, fuse)
    pairs = _foldable(model, going, pairs, given=not isinstance(fuse, str))
    quantizers = _quantizers(going, learning, observer)
    for name, plan in going.items():
        trained(plan.module).replace(plan.module, plan.scheme, quantizers[name])
        if name in pairs:
            plan.module.fold(model.get_submodule(pairs[name]))  # type: ignore[operator]
        _record(plan, pairs.get(name), learning, note)
        note = ""  # once is enough
    model._qat_ledger = told = _ledger(plans, others, recipe)  # type: ignore[assignment]
    told.warn()
    return model


def _ledger(plans: list[Plan], others: list[Entry], recipe: Recipe) -> Ledger:
    """What the plans say of every layer, and `others` of every other parameter."""
    entries = [entry for plan in plans for entry in plan.entries()]
    names = [name for plan in plans for name in plan.names] + [entry.name for entry in others]
    return Ledger([*entries, *others], recipe.unmatched(names))


def ledger(model: nn.Module) -> Ledger:
    """What `prepare_qat`, and then `convert`, made of every layer. Raises ValueError before."""
    found = vars(model).get("_qat_ledger")
    if found is None:
        raise ValueError(
            "the model has no ledger: bs.prepare_qat makes it, for the model that it is given and "
            "not for what is inside or around it"
        )
    return found


def _learning(learn: Learn) -> dict[str, str | None]:
    parts = dict.fromkeys(PARTS, learn) if isinstance(learn, str | None) else dict(learn)
    if unknown := [p for p in parts if p not in PARTS]:
        raise ValueError(f"learn: no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    for what in parts.values():
        if what is not None and what not in learned.DOMAINS:
            raise ValueError(f"learn is None or one of {', '.join(learned.DOMAINS)}, not {what!r}")
    return dict.fromkeys(PARTS) | parts


def _plans(model: nn.Module, recipe: Recipe) -> tuple[list[Plan], list[Entry]]:
    """What is to happen to each layer, and the entries of all other parameters."""
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise ValueError("prepare the model before DistributedDataParallel wraps it")
    if any(isinstance(module, QATLayer) for module in model.modules()):
        raise ValueError("the model is already prepared: bs.convert it, or prepare a float model")
    if quantized_class(model) is not None:
        raise ValueError(
            f"the model is itself a {type(model).__name__}, which bs.convert cannot replace in "
            f"place: wrap it, e.g. in nn.Sequential(layer)"
        )
    plans = plan_layers(model, recipe)
    _refuse(plans)
    return plans, list(plan_others(model, plans, recipe))


def _refuse(plans: list[Plan]) -> None:
    """Skip what can be quantized but not be trained so, and what shares a weight with it."""
    refused: set[int] = set()
    for plan in plans:
        if plan.entry.status == "quantized":
            reason = trained(plan.module).refuses(plan.module)
            if hasattr(plan.parameter, "full_tensor"):
                reason = "its weight is sharded: prepare the model before fully_shard"
            if reason:
                plan.stay("skipped", reason)
                refused.add(id(plan.parameter))
    for plan in plans:
        if plan.entry.status == "quantized" and id(plan.parameter) in refused:
            plan.stay("skipped", "its weight is tied to a layer that cannot be trained so")


def _foldable(
    model: nn.Module, going: dict[str, Plan], pairs: dict[str, str], given: bool
) -> dict[str, str]:
    """The pairs whose convolution is quantized and shares its weight with nothing."""
    found = {}
    for conv, norm in pairs.items():
        module = model.get_submodule(conv)
        plan = next((plan for plan in going.values() if plan.module is module), None)
        alone = plan is not None and not any(
            other.parameter is plan.parameter for other in going.values() if other is not plan
        )
        if plan is not None and alone:
            found[plan.name] = norm
        elif given:
            reason = "is not quantized" if plan is None else "shares its weight with another layer"
            raise ValueError(f"fuse: {conv!r} with {norm!r}: the convolution {reason}")
    return found


def _quantizers(
    going: dict[str, Plan], learning: dict[str, str | None], observer: observers.Spec | None
) -> dict[str, list[nn.Module | None]]:
    """{layer: the quantizers of its weight, input and output}; layers that share a weight share
    its quantizer. Raises ValueError, with the layer's name, for an observer that does not fit."""
    weights: dict[int, WeightQuantizer] = {}
    found: dict[str, list[nn.Module | None]] = {}
    for name, plan in going.items():
        assert plan.kind is not None and plan.parameter is not None
        fmt, device = plan.scheme.weight, plan.parameter.device
        assert fmt is not None
        if id(plan.parameter) not in weights:
            learn = None if learned.why_not(fmt) else learning["weight"]
            seed = named_seed(0, f"{name}.weight")
            shape = tuple(plan.parameter.shape)
            weights[id(plan.parameter)] = WeightQuantizer(
                fmt, plan.kind.layout, shape, seed, learn
            ).to(device)
        formats = (plan.scheme.input if plan.kind.takes_input else None, plan.scheme.output)
        sizes = trained(plan.module).features(plan.module)
        found[name] = [weights[id(plan.parameter)]]
        for form, size, part in zip(formats, sizes, PARTS[1:], strict=True):
            try:
                made = None if form is None else _activation(form, size, learning[part], observer)
            except (ValueError, TypeError) as error:
                raise type(error)(f"{name}: {error}") from None
            found[name].append(None if made is None else made.to(device))
    return found


def _activation(
    fmt: Format, features: int, learn: str | None, observer: observers.Spec | None
) -> ActivationQuantizer:
    if not fmt.block.static:
        return ActivationQuantizer(fmt, features, None, None)
    if learn is not None and learned.why_not(fmt) is None:
        return ActivationQuantizer(fmt, features, None, learn)
    seen = None if observer is None else observers.make(observer, fmt)
    return ActivationQuantizer(fmt, features, seen, None)


def _record(plan: Plan, norm: str | None, learning: dict[str, str | None], note: str) -> None:
    """Write into the plan's entry what became of the layer."""
    layer = plan.module
    assert isinstance(layer, QATLayer)
    layer.weight_quantizer.start(layer.float_weight())
    parts = {
        "weight": layer.weight_quantizer,
        "input": layer.input_quantizer,
        "output": layer.output_quantizer,
    }
    formats: dict[str, Any] = {p: "" if q is None else str(q.format) for p, q in parts.items()}
    notes = [note] * bool(note) + [
        f"the scale of its {part} is not learned: {reason}"
        for part, q in parts.items()
        if q is not None and learning[part] and (reason := learned.why_not(q.format))
    ]
    reasons = ["prepared for training"] + [f"with {norm} folded in"] * (norm is not None)
    plan.entry = replace(plan.entry, **formats, reason=", ".join(reasons), notes=tuple(notes))
