# SPDX-License-Identifier: BSD-3-Clause
"""Models that torch.ao's own prepare or prepare_qat prepared with formats of ours, quantized.

There every module quantizes what it gives, by a hook that calls its `activation_post_process`; and
layers quantize their weight.
"""

from typing import Any

from torch import nn

from blockscale.compat.torch_ao.blocks import FormatObserver
from blockscale.compat.torch_ao.fake_quantize import FormatFakeQuantize
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
