# SPDX-License-Identifier: BSD-3-Clause
"""prepare_qat: turn a model's layers into layers that train as they will be quantized."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import fx, nn

from blockscale.calibration import observers
from blockscale.core.arithmetic.philox import named_seed
from blockscale.core.format import Format
from blockscale.core.ledger import Entry, Ledger
from blockscale.core.recipe import Recipe
from blockscale.core.untrusted import kind_of
from blockscale.layers.apply import check, ledger_of
from blockscale.layers.assembly import Supplied, refuse_unchosen
from blockscale.layers.guards import check_whole, ordinary_tensors, replacing
from blockscale.layers.kinds import quantized_class
from blockscale.layers.model import inner_model, without_wrappers
from blockscale.layers.parameters import plan_others
from blockscale.layers.plan import Decision, Plan, plan_layers
from blockscale.layers.saturation import lost_signs
from blockscale.layers.store import QInput
from blockscale.qat import learned
from blockscale.qat.constraints import BiasQuantizer, settle_biases
from blockscale.qat.layers import QATLayer, trained, why_not_trained
from blockscale.qat.learned import PROFILED, Learn, Learning, read_learning
from blockscale.qat.quantizers import ActivationQuantizer, Quantizers, WeightQuantizer

# Which batch norm follows which convolution, so that both are quantized as one.

NORMS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv1d: nn.BatchNorm1d,
    nn.Conv2d: nn.BatchNorm2d,
    nn.Conv3d: nn.BatchNorm3d,
    nn.ConvTranspose1d: nn.BatchNorm1d,
    nn.ConvTranspose2d: nn.BatchNorm2d,
    nn.ConvTranspose3d: nn.BatchNorm3d,
}
Pairs = Iterable[tuple[str, str]]


def find_pairs(model: nn.Module, fuse: str | Pairs | None) -> tuple[dict[str, str], str]:
    """{convolution: the batch norm that follows it}, and a note for the ledger, perhaps empty.

    fuse: "auto": by tracing the model with torch.fx or, where that fails, by their places in
        nn.Sequential; the pairs by name; None for none.
    Raises ValueError for given pairs that cannot be folded.
    """
    if fuse is None:
        return {}, ""
    if not isinstance(fuse, str):
        return _check_pairs(model, list(fuse)), ""
    if fuse != "auto":
        raise ValueError(
            f"fuse must be 'auto', None or pairs (convolution, batch norm), got {fuse!r}"
        )
    if not any(type(module) in NORMS.values() for module in model.modules()):
        return {}, ""
    pairs, note = _traced(model)
    if pairs is None:
        pairs = dict(_in_sequence(model))
    modules = {name: model.get_submodule(name) for pair in pairs.items() for name in pair}
    times = Counter(id(modules[name]) for pair in pairs.items() for name in pair)
    return {
        conv: norm
        for conv, norm in pairs.items()
        if why_not(modules[conv], modules[norm]) is None
        and times[id(modules[conv])] == times[id(modules[norm])] == 1
    }, note


def why_not(conv: nn.Module, norm: nn.Module) -> str | None:
    """Why this batch norm cannot be folded into this convolution, or None."""
    if NORMS.get(type(conv)) is not type(norm):
        return f"{type(norm).__name__} after {type(conv).__name__} cannot be folded"
    assert isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d)
    if not norm.track_running_stats or norm.running_var is None:
        return "the batch norm keeps no running statistics"
    if norm.num_features != getattr(conv, "out_channels", None):
        return f"the batch norm has {norm.num_features} features, not the convolution's channels"
    if conv._forward_hooks or norm._forward_pre_hooks:
        return "a hook is registered between the two"
    return None


def _check_pairs(model: nn.Module, pairs: list[tuple[str, str]]) -> dict[str, str]:
    modules = dict(model.named_modules(remove_duplicate=False))
    modules_of_pairs: set[int] = set()
    for pair in pairs:
        if len(pair) != 2 or any(name not in modules for name in pair):
            raise ValueError(f"fuse: expected names (convolution, batch norm), found {pair!r}")
        conv, norm = (modules[name] for name in pair)
        if reason := why_not(conv, norm):
            raise ValueError(f"fuse: {pair[0]!r} with {pair[1]!r}: {reason}")
        if id(conv) in modules_of_pairs or id(norm) in modules_of_pairs:
            raise ValueError(f"fuse: {pair!r} names a module that is also in another pair")
        modules_of_pairs |= {id(conv), id(norm)}
    return dict(pairs)


class _Tracer(fx.Tracer):
    """Traces models, but not into layers that can be quantized."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        leaf = quantized_class(m) is not None or isinstance(m, QInput)  # edges of a prepared graph
        return leaf or super().is_leaf_module(m, module_qualified_name)


def _traced(model: nn.Module) -> tuple[dict[str, str] | None, str]:
    """Pairs of calls where the convolution's output goes to the batch norm and nowhere else."""
    try:
        graph = _Tracer().trace(model)
    except Exception as error:  # whatever the model's own forward raises when it meets a proxy
        first = f"{type(error).__name__}: {error}".partition(". ")[0]
        note = f"torch.fx cannot trace the model ({first})"
        return None, f"{note}: batch norms were looked for in nn.Sequential only"
    calls = [node for node in graph.nodes if node.op == "call_module"]
    times = Counter(id(model.get_submodule(str(node.target))) for node in calls)
    pairs = {}
    for node in calls:
        before = node.args[0] if len(node.args) == 1 and not node.kwargs else None
        if not isinstance(before, fx.Node) or before.op != "call_module":
            continue
        is_single = all(times[id(model.get_submodule(str(n.target)))] == 1 for n in (before, node))
        if is_single and len(before.users) == 1:
            pairs[str(before.target)] = str(node.target)
    return {c: n for c, n in pairs.items() if type(model.get_submodule(n)) in NORMS.values()}, ""


def _in_sequence(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Neighbours in an nn.Sequential."""
    for name, module in model.named_modules():
        if type(module) is nn.Sequential:
            names = [f"{name}.{child}".lstrip(".") for child in module._modules]
            kinds = [type(child) for child in module]
            for i in range(len(names) - 1):
                if NORMS.get(kinds[i]) is kinds[i + 1]:
                    yield names[i], names[i + 1]


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
    with without_wrappers(model) as plain, ordinary_tensors(), replacing(plain, "bs.prepare_qat"):
        _prepare(plain, recipe, learning, strict=strict, fuse=fuse, observer=observer)
        info = ledger(plain)
    info.warn()
    return model


_TRAINED = (
    "training chooses in its place, and nothing is transformed. To begin from calibrated weights, "
    "name the formats without a preset, and call bs.calibrate after training"
)


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
    recipe, notes = recipe.uncalibrated(_TRAINED)
    decisions, others = _decisions(model, recipe)
    pairs, note = _foldable(model, decisions, fuse)
    decisions = settle_biases(decisions, pairs, lambda plan: _static(plan, learning, observer))
    check(decisions, others, recipe, strict=strict)
    plans = [each for each in decisions if isinstance(each, Plan)]
    quantizers = _quantizers(plans, learning, observer)
    entries: dict[str, Entry] = {}
    for plan in plans:
        norm = pairs.get(plan.name)
        layer = _prepare_layer(model, plan, quantizers[plan.name], norm)
        entries[plan.name] = _entry(plan.entry, layer, norm, learning, note)
        note = ""  # once is enough
    info = ledger_of(decisions, others, recipe, entries)
    model._qat_ledger = replace(info, notes=notes)  # type: ignore[assignment]


def _prepare_layer(
    model: nn.Module, plan: Plan, quantizers: Quantizers, norm: str | None
) -> QATLayer:
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
    """What `prepare_qat`, and then `convert`, made of every layer of `model`.

    Raises ValueError for a model that was not prepared.
    """
    info: Ledger | None = vars(inner_model(model)).get("_qat_ledger")
    if info is None:
        raise ValueError(
            "the model has no ledger: pass the same module that was passed to "
            "bs.prepare_qat, not one inside or around it"
        )
    return info


def _decisions(model: nn.Module, recipe: Recipe) -> tuple[list[Decision], list[Entry]]:
    """What is to happen to each layer, and the entries of all other parameters."""
    if any(isinstance(module, QATLayer) for module in model.modules()):
        raise ValueError(
            "the model is already prepared: call bs.convert on it, or prepare a float model"
        )
    if quantized_class(model) is not None:
        raise ValueError(
            f"the model is itself {kind_of(model)}, which bs.convert cannot replace in "
            f"place: wrap it, e.g. in nn.Sequential(layer)"
        )
    decisions = list(_trainable(plan_layers(model, recipe)))
    return decisions, list(plan_others(model, decisions, recipe))


def _trainable(decisions: list[Decision]) -> Iterator[Decision]:
    """The same, without the plans for what can be quantized but not be trained so."""
    plans = [each for each in decisions if isinstance(each, Plan)]
    reasons = {plan.name: _why_not(plan) for plan in plans}
    untrainable = {id(plan.parameter) for plan in plans if reasons[plan.name]}
    for each in decisions:
        if not isinstance(each, Plan):
            yield each
        elif reason := reasons[each.name]:
            yield each.exempt("skipped", reason)
        elif id(each.parameter) in untrainable:
            text = "its weight is tied to a layer that cannot be trained with fake quantization"
            yield each.exempt("skipped", text)
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
        names = plan.scheme.input if plan.kind.takes_input else None
        try:
            quantizers[plan.name] = Quantizers(
                weights[id(plan.parameter)],
                _of_activation(names, features.input, learning["input"], observer),
                _of_activation(plan.scheme.output, features.output, learning["output"], observer),
            )
        except (ValueError, TypeError) as error:
            raise type(error)(f"{plan.name}: {error}") from None
        for part, result in quantizers[plan.name]._asdict().items():
            if isinstance(result, ActivationQuantizer):
                result.to(plan.parameter.device)
                result.where = f"{part} of {plan.name}"
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
    chooser = None if observer is None else observers.make(observer, fmt)
    return ActivationQuantizer(fmt, features, chooser, None)


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
