# SPDX-License-Identifier: BSD-3-Clause
"""torch.ao's QConfigMapping as a Recipe: which layer gets which formats."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch.nn.functional as F
from torch import fx, nn
from torch.ao import quantization as ao

from blockscale.compat.torch_ao.formats import to_scheme
from blockscale.core.recipe import Recipe, Scheme
from blockscale.core.torch_private import ConvNd
from blockscale.layers.kinds import quantized_class

# What layers that a Recipe covers call, but for those that torch.ao's default mappings name too.
_CALLS = (F.linear, F.conv1d, F.conv2d, F.conv3d, F.embedding)
_LAYERS = (nn.Linear, nn.Bilinear, nn.Embedding, nn.EmbeddingBag, ConvNd)
_LOOKING = re.compile(r"\$|\(\?|\\[bBZ]")  # what a regular expression may see beyond its match


def to_recipe(config: Any, model: nn.Module | None = None, *, outputs: bool = False) -> Recipe:
    """A torch.ao QConfig or QConfigMapping, theirs or ours -> the Recipe that does the same.

    model: the model it is for. Needed where the mapping speaks of types of layers or of their
        order, or by a regular expression that looks beyond what it matches. With it the Recipe
        names every layer, decided as torch.ao's prepare_fx decides.
    outputs: quantize what layers give, too, and not only what they take. torch.ao quantizes an
        activation once, where it is made, after the activation function if one follows; here that
        is the input of the next layer.

    A Recipe is about layers with weights: entries for other types, functions and methods decide
    nothing, as in a torch.ao model without those. A dynamic activation is an input only. The
    observer is chosen where the Recipe is used, in bs.calibrate or bs.prepare_qat.

    Raises ValueError that names the entry that cannot be translated, TypeError for other objects.
    """
    config = to_mapping(config)
    for kind, qconfig in config.object_type_qconfigs.items():
        if kind in _CALLS and qconfig is not None:
            raise ValueError(
                f"object_type {_called(kind)}: a Recipe quantizes layers, not calls of functions: "
                f"use the module"
            )
    named = _by_name(config) if model is None else _by_layer(config, model)
    default, *rules = [
        (pattern, to_scheme(qconfig, place, outputs)) for pattern, place, qconfig in named
    ]
    return Recipe(**default[1].formats, rules={pattern: _rule(scheme) for pattern, scheme in rules})


def to_mapping(config: Any) -> ao.QConfigMapping:
    """A QConfig or None for every layer, or a QConfigMapping as it is; TypeError for others."""
    if config is None or isinstance(config, ao.QConfig):
        return ao.QConfigMapping().set_global(config)
    if not isinstance(config, ao.QConfigMapping):
        raise TypeError(f"expected a QConfig or a QConfigMapping, found {type(config).__name__}")
    return config


def mapping_of(model: nn.Module, config: Any) -> ao.QConfigMapping:
    """A configuration as a mapping; of None, the `qconfig` attributes of the model's modules.

    Those are what torch.ao's eager mode reads: the one of the nearest module above decides.
    """
    if config is not None:
        return to_mapping(config)
    own = {name: vars(m)["qconfig"] for name, m in model.named_modules() if "qconfig" in vars(m)}
    if not own:
        raise ValueError(
            "no QConfig: pass a QConfig or a QConfigMapping, or set model.qconfig, as torch.ao"
        )
    mapping = ao.QConfigMapping().set_global(own.pop("", None))
    for name, qconfig in own.items():
        mapping.set_module_name(name, qconfig)
    return mapping


def is_layer(kind: Any) -> bool:
    """Whether an entry of a mapping is about a type of layers with weights."""
    return isinstance(kind, type) and issubclass(kind, _LAYERS)


def _called(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind))


def _rule(scheme: Scheme) -> dict[str, Any] | None:
    return dict(scheme.formats) if scheme else None


Order = tuple[str, type, int]
Entry = tuple[str, str, Any]  # a Recipe's pattern, what error messages call it, the QConfig


def _by_name(mapping: ao.QConfigMapping) -> list[Entry]:
    """The global QConfig, and the mapping's own names as patterns, the first that fits decides."""
    for order in mapping.module_name_object_type_order_qconfigs:
        raise ValueError(f"module_name_object_type_order {order}: pass the model to to_recipe, too")
    for kind in mapping.object_type_qconfigs:
        if is_layer(kind):
            raise ValueError(f"object_type {_called(kind)}: pass the model to to_recipe, too")
    deepest = sorted(mapping.module_name_qconfigs.items(), key=lambda item: -item[0].count("."))
    entries = [(name, f"module_name {name!r}", qconfig) for name, qconfig in deepest]
    for regex, qconfig in mapping.module_name_regex_qconfigs.items():
        place = f"module_name_regex {regex!r}"
        if _LOOKING.search(regex):
            raise ValueError(
                f"{place} depends on more than the name that it matches: pass the model to "
                "to_recipe, too"
            )
        entries.append((f"re:(?:{regex}).*", place, qconfig))  # torch.ao matches the beginning
    return [("", "global", mapping.global_qconfig), *entries]


def _by_layer(mapping: ao.QConfigMapping, model: nn.Module) -> list[Entry]:
    """The global QConfig, and each layer by its name, in torch.ao's order of priority."""
    entries = [
        (name, f"{place}, layer {name!r}", qconfig)
        for name, place, qconfig in decided(mapping, model)
        if qconfig is not mapping.global_qconfig
    ]
    entries.sort(key=lambda entry: -entry[0].count("."))  # a pattern covers what is below it
    return [("", "global", mapping.global_qconfig), *entries]


def decided(mapping: ao.QConfigMapping, model: nn.Module) -> Iterator[Entry]:
    """(name, what decided, QConfig) of each layer of a model."""
    orders = _orders(model) if mapping.module_name_object_type_order_qconfigs else {}
    for name, module in model.named_modules(remove_duplicate=False):
        if is_layer(type(module)) or quantized_class(module) is not None:
            yield (name, *_decide(mapping, name, type(module), orders.get(name)))


def _decide(
    mapping: ao.QConfigMapping, name: str, kind: type, order: Order | None
) -> tuple[str, Any]:
    """(what decided, the QConfig of a layer)."""
    if order is not None and order in mapping.module_name_object_type_order_qconfigs:
        qconfig = mapping.module_name_object_type_order_qconfigs[order]
        return f"module_name_object_type_order {order}", qconfig
    steps = name.split(".")
    for count in range(len(steps), 0, -1):
        above = ".".join(steps[:count])
        if above in mapping.module_name_qconfigs:
            return f"module_name {above!r}", mapping.module_name_qconfigs[above]
    for regex, qconfig in mapping.module_name_regex_qconfigs.items():
        if re.match(regex, name):
            return f"module_name_regex {regex!r}", qconfig
    if kind in mapping.object_type_qconfigs:
        return f"object_type {_called(kind)}", mapping.object_type_qconfigs[kind]
    return "global", mapping.global_qconfig


def _orders(model: nn.Module) -> dict[str, Order]:
    """{layer: (the module it is in, its type, how many of that type were called there before)}."""
    try:
        graph = fx.Tracer().trace(model)
    except Exception as error:
        raise ValueError(
            f"module_name_object_type_order needs a model that torch.fx traces: {error}"
        ) from error
    seen: Counter[tuple[str, type]] = Counter()
    orders: dict[str, Order] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            name = str(node.target)
            place = (name.rpartition(".")[0], type(model.get_submodule(name)))
            orders.setdefault(name, (*place, seen[place]))
            seen[place] += 1
    return orders
