# SPDX-License-Identifier: BSD-3-Clause
"""prepare and convert, as torch.ao's: observe a model by its configuration, then quantize it."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from blockscale import qat
from blockscale.calibration import observers
from blockscale.calibration.input_stats import features_last
from blockscale.calibration.session import static_parts
from blockscale.compat.torch_ao import eager
from blockscale.compat.torch_ao.eager import to_observer
from blockscale.compat.torch_ao.formats import instance
from blockscale.compat.torch_ao.recipe import decided, mapping_of, to_recipe
from blockscale.core.format import Format
from blockscale.core.recipe import Recipe
from blockscale.layers.apply import apply, check, plans_for
from blockscale.layers.parameters import entries_of, plan_parameters
from blockscale.layers.plan import Plan
from blockscale.layers.store import QInput
from blockscale.layers.supplied import supplied
from blockscale.qat.layers import QATLayer

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
    dynamic = {name for name, _, qconfig in decided(mapping, model) if _is_dynamic(qconfig)}
    quantized = [p for p in plans if isinstance(p, Plan) and not dynamic.intersection(p.names)]
    looks = [look for plan in quantized for look in _looks(plan, spec)]
    for look in looks:
        look.start(model.get_submodule(look.name))
    vars(model)[_KEPT] = _Observed(recipe, looks)
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
    observed: _Observed | None = vars(model).get(_KEPT)
    if observed is None and eager.is_prepared(model):
        model._qat_ledger = eager.quantize_prepared(model)  # type: ignore[assignment]
        return model
    if observed is None:
        if not any(isinstance(module, QATLayer) for module in model.modules()):
            raise ValueError("the model is not prepared: prepare or prepare_qat it first")
        return qat.convert(model)
    plans = plans_for(model, observed.recipe)
    places = supplied(plans)
    for look in observed.looks:
        setattr(places[look.name], look.part, look.quantizer())
    for look in observed.looks:
        look.stop(model.get_submodule(look.name))
    try:
        ledger = apply(model, plans, observed.recipe, places)
    except BaseException:
        for look in observed.looks:
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
class _Observed:
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
