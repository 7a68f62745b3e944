# SPDX-License-Identifier: BSD-3-Clause
"""prepare_qat: turn a model's layers into layers that train as they will be quantized."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from blockscale.calibration import observers
from blockscale.core.arithmetic.philox import named_seed
from blockscale.core.format import Format
from blockscale.core.ledger import Entry, Ledger
from blockscale.core.recipe import Recipe
from blockscale.layers.apply import check
from blockscale.layers.guards.entry import ordinary_tensors
from blockscale.layers.guards.optimizers import replacing
from blockscale.layers.guards.processes import check_whole
from blockscale.layers.kinds import quantized_class
from blockscale.layers.ledger import ledger_of
from blockscale.layers.model.wrapped import inner_model, unwrapped
from blockscale.layers.parameters.planned import plan_others
from blockscale.layers.plan import Decision, Plan, plan_layers
from blockscale.layers.signs import lost_signs
from blockscale.layers.supplied import Supplied, refuse_unchosen
from blockscale.qat import learned
from blockscale.qat.bias import BiasQuantizer, settled
from blockscale.qat.folding import Pairs, find_pairs
from blockscale.qat.layers import QATLayer, trained, why_not_trained
from blockscale.qat.learned import PROFILED, Learn, Learning, read_learning
from blockscale.qat.quantizers import ActivationQuantizer, Quantizers, WeightQuantizer


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
    check_whole(model, "bs.prepare_qat")
    recipe, learning = Recipe.read(recipe).refuse_profiles(PROFILED), read_learning(learn)
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise ValueError("found a DistributedDataParallel: prepare the model before wrapping it")
    with unwrapped(model) as plain, ordinary_tensors(), replacing(plain, "bs.prepare_qat"):
        _prepare(plain, recipe, learning, strict=strict, fuse=fuse, observer=observer)
        told = ledger(plain)
    told.warn()
    return model


def _prepare(
    model: nn.Module,
    recipe: Recipe,
    learning: Learning,
    *,
    strict: bool,
    fuse: str | Pairs | None,
    observer: observers.Spec | None,
) -> None:
    """What `prepare_qat` does, to the plain model."""
    decisions, others = _decisions(model, recipe)
    pairs, note = _foldable(model, decisions, fuse)
    decisions = settled(decisions, pairs, lambda plan: _static(plan, learning, observer))
    check(decisions, others, recipe, strict=strict)
    plans = [each for each in decisions if isinstance(each, Plan)]
    quantizers = _quantizers(plans, learning, observer)
    entries: dict[str, Entry] = {}
    for plan in plans:
        norm = pairs.get(plan.name)
        layer = _prepared(model, plan, quantizers[plan.name], norm)
        entries[plan.name] = _entry(plan.entry, layer, norm, learning, note)
        note = ""  # once is enough
    model._qat_ledger = ledger_of(decisions, others, recipe, entries)  # type: ignore[assignment]


def _prepared(model: nn.Module, plan: Plan, quantizers: Quantizers, norm: str | None) -> QATLayer:
    """The float layer of a plan, now a layer in training with the batch norm `norm` folded in."""
    bias = None
    if plan.quantizes_bias and plan.scheme.bias is not None:
        bias = BiasQuantizer(plan.scheme.bias, named_seed(0, f"{plan.name}.bias"))
    layer = trained(plan.module).replace(plan.module, plan.scheme, quantizers, bias)
    if norm is not None:
        layer.fold(model.get_submodule(norm))
    layer.weight_quantizer.start(layer.float_weight())
    return layer


def ledger(model: nn.Module) -> Ledger:
    """What `prepare_qat`, and then `convert`, made of every layer. Raises ValueError before."""
    told: Ledger | None = vars(inner_model(model)).get("_qat_ledger")
    if told is None:
        raise ValueError(
            "the model has no ledger: pass the same module that was passed to "
            "bs.prepare_qat, not one inside or around it"
        )
    return told


def _decisions(model: nn.Module, recipe: Recipe) -> tuple[list[Decision], list[Entry]]:
    """What is to happen to each layer, and the entries of all other parameters."""
    if any(isinstance(module, QATLayer) for module in model.modules()):
        raise ValueError(
            "the model is already prepared: call bs.convert on it, or prepare a float model"
        )
    if quantized_class(model) is not None:
        raise ValueError(
            f"the model is itself a {type(model).__name__}, which bs.convert cannot replace in "
            f"place: wrap it, e.g. in nn.Sequential(layer)"
        )
    decisions = list(_trainable(plan_layers(model, recipe)))
    return decisions, list(plan_others(model, decisions, recipe))


def _trainable(decisions: list[Decision]) -> Iterator[Decision]:
    """The same, without the plans for what can be quantized but not be trained so."""
    plans = [each for each in decisions if isinstance(each, Plan)]
    reasons = {plan.name: _why_not(plan) for plan in plans}
    refused = {id(plan.parameter) for plan in plans if reasons[plan.name]}
    for each in decisions:
        if not isinstance(each, Plan):
            yield each
        elif reason := reasons[each.name]:
            yield each.left("skipped", reason)
        elif id(each.parameter) in refused:
            told = "its weight is tied to a layer that cannot be trained so"
            yield each.left("skipped", told)
        else:
            yield each


def _why_not(plan: Plan) -> str | None:
    """Why this layer cannot be trained with fake quantization, or None."""
    if hasattr(plan.parameter, "full_tensor"):
        return "its weight is sharded: prepare the model before fully_shard"
    return why_not_trained(plan.module)


def _foldable(
    model: nn.Module, decisions: list[Decision], fuse: str | Pairs | None
) -> tuple[dict[str, str], str]:
    """As `find_pairs`: those whose convolution is quantized and shares its weight with nothing."""
    pairs, note = find_pairs(model, fuse)
    plans = [each for each in decisions if isinstance(each, Plan)]
    foldable = {}
    for conv, norm in pairs.items():
        module = model.get_submodule(conv)
        plan = next((plan for plan in plans if plan.module is module), None)
        alone = plan is not None and not any(
            other.parameter is plan.parameter for other in plans if other is not plan
        )
        if plan is not None and alone:
            foldable[plan.name] = norm
        elif not isinstance(fuse, str):
            reason = "is not quantized" if plan is None else "shares its weight with another layer"
            raise ValueError(f"fuse: {conv!r} with {norm!r}: the convolution {reason}")
    return foldable, note


def _quantizers(
    plans: list[Plan], learning: Learning, observer: observers.Spec | None
) -> dict[str, Quantizers]:
    """{layer: its quantizers}; layers that share a weight share its quantizer.

    Raises ValueError, with the layer's name, for an observer that does not fit, and for formats
    whose scales are not chosen.
    """
    weights: dict[int, WeightQuantizer] = {}
    quantizers: dict[str, Quantizers] = {}
    for plan in plans:
        refuse_unchosen(plan, Supplied())
        if id(plan.parameter) not in weights:
            weights[id(plan.parameter)] = _of_weight(plan, learning["weight"])
        features = trained(plan.module).features(plan.module)
        taken = plan.scheme.input if plan.kind.takes_input else None
        try:
            quantizers[plan.name] = Quantizers(
                weights[id(plan.parameter)],
                _of_activation(taken, features.input, learning["input"], observer),
                _of_activation(plan.scheme.output, features.output, learning["output"], observer),
            )
        except (ValueError, TypeError) as error:
            raise type(error)(f"{plan.name}: {error}") from None
        for part, made in quantizers[plan.name]._asdict().items():
            if isinstance(made, ActivationQuantizer):
                made.to(plan.parameter.device)
                made.where = f"{part} of {plan.name}"
    return quantizers


def _of_weight(plan: Plan, learn: str | None) -> WeightQuantizer:
    learn = None if learned.why_not(plan.format) else learn
    seed, shape = named_seed(0, f"{plan.name}.weight"), tuple(plan.parameter.shape)
    quantizer = WeightQuantizer(plan.format, plan.layout, shape, seed, learn)
    return quantizer.to(plan.parameter.device)


def _of_activation(
    fmt: Format | None, features: int, learn: str | None, observer: observers.Spec | None
) -> ActivationQuantizer | None:
    """The quantizer of an input or output in this format, None where it stays float."""
    if fmt is None:
        return None
    if not fmt.block.static:
        return ActivationQuantizer(fmt, features, None, None)
    if learn is not None and learned.why_not(fmt) is None:
        return ActivationQuantizer(fmt, features, None, learn)
    seen = None if observer is None else observers.make(observer, fmt)
    return ActivationQuantizer(fmt, features, seen, None)


def _static(plan: Plan, learning: Learning, observer: observers.Spec | None) -> bool:
    """Whether the input of this layer gets a static scale (as `_of_activation` makes it)."""
    fmt = plan.scheme.input
    if fmt is None or not fmt.block.static:
        return False
    learns = learning["input"] is not None and learned.why_not(fmt) is None
    return learns or observer is not None


def _entry(entry: Entry, layer: QATLayer, norm: str | None, learning: Learning, note: str) -> Entry:
    """What the ledger says of a layer that was prepared; `norm`: the batch norm folded into it."""
    quantizers = layer.quantizers()._asdict()
    formats: dict[str, Any] = {
        part: "" if quantizer is None else str(quantizer.format)
        for part, quantizer in quantizers.items()
    }
    notes = lost_signs("weight", layer.float_weight(), layer.quantizers().weight.format)
    notes += [note] * bool(note) + [
        f"the scale of its {part} is not learned: {reason}"
        for part, quantizer in quantizers.items()
        if quantizer is not None and learning[part]
        if (reason := learned.why_not(quantizer.format))
    ]
    if layer.weight_quantizer.learned is not None:
        notes += layer.weight_quantizer.learned.waiting_notes("weight", layer.padding_row)
    if layer.bias_quantizer is not None:
        formats["bias"] = str(layer.bias_quantizer.format)
    reasons = ["prepared for training"] + [f"with {norm} folded in"] * (norm is not None)
    return replace(entry, **formats, reason=", ".join(reasons), notes=tuple(notes))
