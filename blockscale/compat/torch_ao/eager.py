# SPDX-License-Identifier: BSD-3-Clause
"""Models that torch.ao's own prepare or prepare_qat prepared with formats of ours, quantized.

There every module quantizes what it gives, by a hook that calls its `activation_post_process`; and
layers quantize their weight.
"""

import copy
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.ao import quantization as ao

from blockscale import qat
from blockscale.calibration import observers
from blockscale.compat.torch_ao.blocks import FormatObserver, asked_format, spec_of
from blockscale.compat.torch_ao.fake_quantize import FormatFakeQuantize
from blockscale.compat.torch_ao.formats import instance
from blockscale.compat.torch_ao.option import unwrap
from blockscale.compat.torch_ao.recipe import is_layer, mapping_of, to_recipe
from blockscale.core.format import Format
from blockscale.core.ledger import Ledger
from blockscale.core.recipe import Recipe
from blockscale.layers.apply import quantize_
from blockscale.qat import quantizers

_OURS = (FormatObserver, FormatFakeQuantize)
_RESULT, _WEIGHT = "activation_post_process", "weight_fake_quant"
_HOOK = "_observer_forward_hook"  # torch.ao's function that calls the first of them


def is_prepared(model: nn.Module) -> bool:
    """Whether torch.ao's prepare or prepare_qat put formats of ours into the model."""
    return any(
        isinstance(_held(m, part), _OURS) for m in model.modules() for part in (_RESULT, _WEIGHT)
    )


def quantize_prepared(model: nn.Module) -> Ledger:
    """Quantize the weights of prepared layers, and fix how what modules give is quantized. In
    place; returns the ledger.

    The model then computes what it computed while it trained; after prepare, what it observed with
    its weights quantized. Raises ValueError, before anything changes, for a static scale that has
    seen no data.
    """
    results = {name: _fixed(name, m) for name, m in model.named_modules() if _quantizes_result(m)}
    weights = {name: found for name, m in model.named_modules() if (found := _of_weight(m))}
    hooks = {name: _without_hook(model.get_submodule(name)) for name in results}
    rules: dict[str, Any] = {}
    for name, made in weights.items():
        layer = quantizers.float_layer(model.get_submodule(name))
        quantizers.replace_layer(model, name, layer)
        inner = name if quantizers.weighted(layer) is layer else f"{name}.0"
        rules[inner] = {"weight": made.format}
    ledger = quantize_(model, Recipe(rules=rules))
    for name, values in results.items():
        module: Any = model.get_submodule(name)
        setattr(module, _RESULT, values)
        for hook in hooks[name]:
            module.register_forward_hook(hook, prepend=True)
    return ledger


def _held(module: nn.Module, part: str) -> Any:
    return module._modules.get(part)


def _quantizes_result(module: nn.Module) -> bool:
    return not isinstance(module, _OURS) and isinstance(_held(module, _RESULT), _OURS)


def _of_weight(module: nn.Module) -> Any:
    """What quantizes the weight of a layer that was prepared; None for other modules."""
    prepared = quantizers.is_trained(module) or _quantizes_result(module)
    return quantizers.weight_quantizer(module) if prepared else None


def _fixed(name: str, module: nn.Module) -> nn.Module:
    """What a module's results go through from now on."""
    try:
        return _held(module, _RESULT).values()
    except ValueError as error:
        raise ValueError(f"the output of {name or 'the model'}: {error}") from None


def _without_hook(module: nn.Module) -> list[Any]:
    """Take torch.ao's hook and what it calls from a module; returns the hook, if there was one
    (a FloatFunctional calls what it holds itself)."""
    found = [(key, h) for key, h in module._forward_hooks.items() if h.__name__ == _HOOK]
    for key, _ in found:
        del module._forward_hooks[key]
    delattr(module, _RESULT)
    return [hook for _, hook in found]


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
    chosen = to_observer(mapping) if observer is None else observer
    model = model if inplace else copy.deepcopy(model)
    return qat.prepare_qat(model, recipe, observer=chosen, **options)


def to_observer(config: Any) -> str:
    """The observer of blockscale that stands for the one of a configuration's activations.

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
    if asked_format(arguments) is not None and "observer" not in arguments:
        return None  # a format alone
    made = instance(qconfig.activation)
    made = getattr(made, "activation_post_process", made)
    if isinstance(made, FormatObserver):
        return made.spec if made.statistics is not None else None
    if isinstance(made, nn.Identity | ao.PlaceholderObserver) or getattr(made, "is_dynamic", False):
        return None
    try:
        return spec_of(type(made), vars(made), users=True)
    except TypeError:
        raise ValueError(
            f"{type(made).__name__} has no counterpart here: choose one, observer=..."
        ) from None
