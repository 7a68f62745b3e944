# SPDX-License-Identifier: BSD-3-Clause
"""Models that torch.ao's own prepare or prepare_qat prepared with formats of ours, quantized.

There every module quantizes what it gives, by a hook that calls its `activation_post_process`; and
layers quantize their weight.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.ao import quantization as ao

from blockscale import qat
from blockscale.calibration import observers
from blockscale.calibration.input_stats import features_last
from blockscale.calibration.session import static_parts
from blockscale.compat.torch_ao.blocks import FormatObserver, format_as_dtype, spec_of
from blockscale.compat.torch_ao.fake_quantize import FormatFakeQuantize
from blockscale.compat.torch_ao.option import unwrap
from blockscale.compat.torch_ao.recipe import decide, instance, is_layer, mapping_of, to_recipe
from blockscale.core.format import Format
from blockscale.core.ledger import Ledger
from blockscale.core.recipe import Recipe
from blockscale.layers.apply import apply, check, plans_for, quantize_
from blockscale.layers.assembly import supplied
from blockscale.layers.parameters import entries_of, plan_parameters
from blockscale.layers.plan import Plan
from blockscale.layers.store import QInput
from blockscale.qat import quantizers
from blockscale.qat.layers import QATLayer

_OURS = (FormatObserver, FormatFakeQuantize)
_RESULT, _WEIGHT = "activation_post_process", "weight_fake_quant"
_HOOK = "_observer_forward_hook"  # torch.ao's function that calls the first of them


def is_prepared(model: nn.Module) -> bool:
    """Whether torch.ao's prepare or prepare_qat put formats of ours into the model."""
    return any(
        isinstance(_child(m, part), _OURS) for m in model.modules() for part in (_RESULT, _WEIGHT)
    )


def quantize_prepared(model: nn.Module) -> Ledger:
    """Quantize the weights of prepared layers, and fix how what modules give is quantized. In
    place; returns the ledger.

    The model then computes what it computed while it trained; after prepare, what it observed with
    its weights quantized. Raises ValueError, before anything changes, for a static scale that has
    seen no data.
    """
    results = {name: _fixed(name, m) for name, m in model.named_modules() if _quantizes_result(m)}
    weights = {name: result for name, m in model.named_modules() if (result := _of_weight(m))}
    hooks = {name: _without_hook(model.get_submodule(name)) for name in results}
    rules: dict[str, Any] = {}
    for name, output in weights.items():
        layer = quantizers.float_layer(model.get_submodule(name))
        quantizers.replace_layer(model, name, layer)
        inner = name if quantizers.weighted(layer) is layer else f"{name}.0"
        rules[inner] = {"weight": output.format}
    ledger = quantize_(model, Recipe(rules=rules))
    for name, values in results.items():
        module: Any = model.get_submodule(name)
        setattr(module, _RESULT, values)
        for hook in hooks[name]:
            module.register_forward_hook(hook, prepend=True)
    return ledger


def _child(module: nn.Module, part: str) -> Any:
    return module._modules.get(part)


def _quantizes_result(module: nn.Module) -> bool:
    return not isinstance(module, _OURS) and isinstance(_child(module, _RESULT), _OURS)


def _of_weight(module: nn.Module) -> Any:
    """What quantizes the weight of a layer that was prepared; None for other modules."""
    has_quantizer = quantizers.is_trained(module) or _quantizes_result(module)
    return quantizers.weight_quantizer(module) if has_quantizer else None


def _fixed(name: str, module: nn.Module) -> nn.Module:
    """What a module's results go through from now on."""
    try:
        return _child(module, _RESULT).values()
    except ValueError as error:
        raise ValueError(f"the output of {name or 'the model'}: {error}") from None


def _without_hook(module: nn.Module) -> list[Any]:
    """Take torch.ao's hook and what it calls from a module; returns the hook, if there was one
    (a FloatFunctional calls what it holds itself)."""
    results = [(key, h) for key, h in module._forward_hooks.items() if h.__name__ == _HOOK]
    for key, _ in results:
        del module._forward_hooks[key]
    delattr(module, _RESULT)
    return [hook for _, hook in results]


# Train a model by torch.ao's configuration: its recipe and its observer, handed to blockscale.


def prepare_qat(
    model: nn.Module,
    config: Any = None,
    *,
    outputs: bool = False,
    observer: observers.Spec | None = None,
    inplace: bool = True,
    **options: Any,
) -> nn.Module:
    """A float model -> prepared for training, by a torch.ao QConfig or QConfigMapping; returns it.

    It is bs.prepare_qat(model, to_recipe(config, model, outputs=outputs), observer=observer), with
    further `options` of that. `convert` then gives the quantized model.

    config: None takes the `qconfig` attributes of the model and its modules, as torch.ao's does.
    observer: by default the one that the configuration's activations name, see `to_observer`.
    inplace: False prepares a copy, which torch.ao's does by default.

    Raises ValueError for what cannot be translated, and as bs.prepare_qat, before anything changes.
    """
    mapping = mapping_of(model, config)
    recipe = to_recipe(mapping, model, outputs=outputs)
    choice = to_observer(mapping) if observer is None else observer
    model = model if inplace else copy.deepcopy(model)
    return qat.prepare_qat(model, recipe, observer=choice, **options)


def to_observer(config: Any) -> str:
    """The observer of blockscale that stands for the one of the activations of `config`.

    Minima and maxima and their moving averages are the same ones. A HistogramObserver becomes
    "mse", which also minimizes the squared error, but for the format at hand. Where nothing is
    observed (float or dynamic activations, Formats) it is "moving_average".

    Raises ValueError if there are several, or one that has no counterpart.
    """
    specs = {spec for qconfig in _qconfigs(config) if (spec := _spec(qconfig))}
    if len(specs) > 1:
        raise ValueError(
            f"the activations have several observers, {', '.join(sorted(specs))}: "
            f"choose one, observer=..."
        )
    return specs.pop() if specs else "moving_average"


def _qconfigs(config: Any) -> Iterator[Any]:
    if not isinstance(config, ao.QConfigMapping):
        yield config
        return
    yield config.global_qconfig
    yield from config.module_name_qconfigs.values()
    yield from config.module_name_regex_qconfigs.values()
    yield from config.module_name_object_type_order_qconfigs.values()
    yield from (q for kind, q in config.object_type_qconfigs.items() if is_layer(kind))


def _spec(qconfig: Any) -> str | None:
    if qconfig is None or isinstance(qconfig.activation, str | Format | None):
        return None
    _, arguments, _ = unwrap(qconfig.activation)
    if format_as_dtype(arguments) is not None and "observer" not in arguments:
        return None  # a format alone
    result = instance(qconfig.activation)
    result = getattr(result, "activation_post_process", result)
    if isinstance(result, FormatObserver):
        return result.spec if result.statistics is not None else None
    if isinstance(result, nn.Identity | ao.PlaceholderObserver) or getattr(
        result, "is_dynamic", False
    ):
        return None
    try:
        return spec_of(type(result), vars(result), users=True)
    except TypeError:
        raise ValueError(
            f"{type(result).__name__} has no counterpart here: choose one, observer=..."
        ) from None


# prepare and convert, as torch.ao's: observe a model by its configuration, then quantize it.

_KEPT = "_observed"  # where a prepared model keeps what `convert` needs, as `qat` keeps its ledger


def prepare(  # noqa: PLR0913 - the first three are the call, the rest are options
    model: nn.Module,
    config: Any = None,
    example_inputs: Any = None,
    *,
    outputs: bool = False,
    observer: observers.Spec | None = None,
    strict: bool = False,
    inplace: bool = True,
) -> nn.Module:
    """A float model -> observed, by a torch.ao QConfig or QConfigMapping; returns it.

    Run it on data then, in float, and `convert` it. bs.calibrate does all that in one call.

    config: None takes the `qconfig` attributes of the model and its modules, as torch.ao's does.
    example_inputs: not needed, as nothing is traced; here for calls written for prepare_fx.
    outputs: as in `to_recipe`. observer: by default the one that the configuration's activations
        name, see `to_observer`. Dynamic activations stay dynamic, and are not observed.
    strict: raise SkippedError if something that the configuration covers cannot be quantized.
    inplace: False prepares a copy, which torch.ao's does by default.

    Raises ValueError for what cannot be translated, before anything changes.
    """
    del example_inputs
    model = model if inplace else copy.deepcopy(model)
    if _KEPT in vars(model) or any(isinstance(module, QATLayer) for module in model.modules()):
        raise ValueError("the model is already prepared: convert it, or prepare a float model")
    mapping = mapping_of(model, config)
    recipe = to_recipe(mapping, model, outputs=outputs)
    spec = to_observer(mapping) if observer is None else observer
    plans = plans_for(model, recipe)
    check(plans, entries_of(plan_parameters(model, plans, recipe)), recipe, strict=strict)
    dynamic = {name for name, _, qconfig in decide(mapping, model) if _is_dynamic(qconfig)}
    quantized = [p for p in plans if isinstance(p, Plan) and not dynamic.intersection(p.names)]
    looks = [look for plan in quantized for look in _looks(plan, spec)]
    for look in looks:
        look.start(model.get_submodule(look.name))
    vars(model)[_KEPT] = _PreparedModel(recipe, looks)
    return model


def convert(model: nn.Module, *, inplace: bool = True) -> nn.Module:
    """A model after `prepare` and data, or after `prepare_qat` and training -> quantized.

    Returns it, or with inplace=False a quantized copy. Of one that was trained it is bs.convert. It
    also takes what torch.ao's own prepare and prepare_qat gave with formats in `model.qconfig`:
    results of modules are quantized then as they were, and not the inputs of layers.
    What could not be quantized is named in one warning; `bs.qat.ledger(model)` says what became of
    every layer.

    Raises ValueError, before anything is changed, for a model that is not prepared and for a layer
    whose observer has seen no data.
    """
    model = model if inplace else copy.deepcopy(model)
    state: _PreparedModel | None = vars(model).get(_KEPT)
    if state is None and is_prepared(model):
        model._qat_ledger = quantize_prepared(model)  # type: ignore[assignment]
        return model
    if state is None:
        if not any(isinstance(module, QATLayer) for module in model.modules()):
            raise ValueError("the model is not prepared: prepare or prepare_qat it first")
        return qat.convert(model)
    plans = plans_for(model, state.recipe)
    places = supplied(plans)
    for look in state.looks:
        setattr(places[look.name], look.part, look.quantizer())
    for look in state.looks:
        look.stop(model.get_submodule(look.name))
    try:
        ledger = apply(model, plans, state.recipe, places)
    except BaseException:
        for look in state.looks:
            look.start(model.get_submodule(look.name))
        raise
    del vars(model)[_KEPT]
    model._qat_ledger = ledger  # type: ignore[assignment]
    ledger.warn()
    return model


class _Look:
    """Shows an observer the input or output of a layer; a hook that is copied with its model."""

    def __init__(self, plan: Plan, part: str, observer: observers.Observer):
        self.name, self.part, self.observer = plan.name, part, observer
        self.layout, self.rank = plan.layout, plan.parameter.ndim

    def __call__(self, _: nn.Module, args: Any, kwargs: Any, y: Any) -> None:
        """torch's forward hook: the module's inputs, and what it gave."""
        x: Tensor = y if self.part == "output" else args[0] if args else next(iter(kwargs.values()))
        self.observer.to(x.device).observe(features_last(x, self.layout, self.rank))

    def start(self, module: nn.Module) -> None:
        """See every call of the layer from now on."""
        module.register_forward_hook(self, with_kwargs=True, prepend=True)

    def stop(self, module: nn.Module) -> None:
        """Leave the layer as it was."""
        for key, hook in list(module._forward_hooks.items()):
            if hook is self:
                del module._forward_hooks[key]
                module._forward_hooks_with_kwargs.pop(key, None)

    def quantizer(self) -> QInput:
        """The static quantizer of what was seen. Raises ValueError if that is nothing."""
        try:
            parts = self.observer.qparams()._asdict()
        except ValueError as error:
            raise ValueError(f"the {self.part} of {self.name}: {error}") from None
        quantizer = QInput(self.observer.format)
        quantizer.restore({name: part for name, part in parts.items() if part is not None})
        return quantizer


@dataclass
class _PreparedModel:
    """What a prepared model keeps."""

    recipe: Recipe
    looks: list[_Look]


def _looks(plan: Plan, spec: observers.Spec) -> Iterator[_Look]:
    for part in static_parts(plan):
        try:
            observer = observers.make(spec, getattr(plan.scheme, part))
        except (ValueError, TypeError) as error:
            raise type(error)(f"the {part} of {plan.name}: {error}") from None
        yield _Look(plan, part, observer.to(plan.parameter.device))


def _is_dynamic(qconfig: Any) -> bool:
    if qconfig is None or isinstance(qconfig.activation, str | Format | None):
        return False
    return bool(getattr(instance(qconfig.activation), "is_dynamic", False))
