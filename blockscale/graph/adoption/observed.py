# SPDX-License-Identifier: BSD-3-Clause
"""Layers that torch.ao's prepare_fx or prepare_qat_fx prepared with formats of ours.

torch.ao's converter asks a weight's observer for one scale a tensor or a channel. So what has a
format as its dtype is taken out of its hands first: the layer becomes a float layer whose weight
goes through the format at each call, as torch.export then sees it.
"""

import functools
import warnings
from collections.abc import Callable
from typing import Any

from torch import Tensor, fx, nn
from torch.nn.utils.parametrize import type_before_parametrizations

from blockscale.core.untrusted import kind_of
from blockscale.graph.adoption import affine, written
from blockscale.graph.adoption.parts import NoFormatError, QuantizerCall
from blockscale.graph.adoption.written import Known, choose_quantize, dequantize, quantize
from blockscale.graph.nodes import say
from blockscale.qat import quantizers

# Quantize and dequantize nodes of torch and torchao as ours, where a format gives their bits.

_READERS: dict[str, Callable[[fx.Node], QuantizerCall]] = {**written.READERS, **affine.READERS}


def schema_name(node: fx.Node) -> str:
    """`quantized_decomposed::quantize_per_tensor.tensor` of a node that calls it; "" for others.

    By name, because the ops exist only where their library was imported.
    """
    schema: Any = getattr(node.target, "_schema", None) if node.op == "call_function" else None
    if schema is None:
        return ""
    overload = f".{schema.overload_name}" if schema.overload_name else ""
    return f"{schema.name}{overload}"


def translate(graph: fx.GraphModule) -> int:
    """Change the nodes that have a format, in place; returns how many. Notes say why."""
    count = 0
    packed: Known = {}
    for node in list(graph.graph.nodes):
        name = schema_name(node)
        if name not in _READERS:
            if is_foreign(node):
                say(graph, node, f"{name} has no counterpart and stays")
            continue
        try:
            result = _READERS[name](node)
            write = _WRITERS[result.kind]
            write(graph, node, result, packed)
        except NoFormatError as error:
            say(graph, node, f"{name} stays as it is: {error}")
            continue
        count += 1
    return count


def is_foreign(node: fx.Node) -> bool:
    """Whether another library's node quantizes or dequantizes."""
    library, _, name = schema_name(node).partition("::")
    quantizes = "quant" in name and "choose" not in name
    return library in ("quantized_decomposed", "torchao") and quantizes


_WRITERS = {"quantize": quantize, "dequantize": dequantize, "choose": choose_quantize}

_STATE = "_observed_graph_module_attrs"  # where prepare_fx keeps what its converter needs


def quantize_weights(model: fx.GraphModule) -> None:
    """Let weights whose observer has a format go through it, in place.

    Raises ValueError, with the layer's name, for layers with several weights. What torch.ao left in
    float though its QConfig has a format is named in one warning.
    """
    state = model.meta[_STATE]
    names: list[str] = []
    with_weights: set[str] = set()
    for node in model.graph.find_nodes(op="call_module"):
        name = str(node.target)
        layer = model.get_submodule(name)
        result = quantizers.weight_quantizer(layer) if name not in with_weights else None
        if result is None:
            continue
        if not quantizers.is_trained(layer) and node.name not in state.observed_node_names:
            names.append(f"{name} ({type(layer).__name__})")
            continue
        with_weights.add(name)
        quantizers.replace_layer(model, name, _with_values(name, layer, result))
    if names:
        warnings.warn(
            f"blockscale: torch.ao's prepare_fx observes nothing of {', '.join(names)}, whose "
            "QConfig has a format: it has no static scheme for such layers, so they stay in "
            "float. To quantize them, call bs.quantize_ on the model first, or use "
            "bs.graph.prepare with a recipe",
            stacklevel=4,
        )


def observed_layers(model: fx.GraphModule) -> dict[str, type]:
    """{layer: its class} of those with a matrix for a weight that torch.ao observes, by a QConfig
    of its own."""
    observed_names = model.meta[_STATE].observed_node_names
    data = {}
    for node in model.graph.find_nodes(op="call_module"):
        layer: Any = model.get_submodule(str(node.target))
        weight = getattr(quantizers.weighted(layer), "weight", None)
        matrix = isinstance(weight, Tensor) and weight.ndim > 1
        if matrix and node.name in observed_names and getattr(layer, "qconfig", None) is not None:
            data[str(node.target)] = type_before_parametrizations(layer)
    return data


def _with_values(name: str, layer: nn.Module, value: Any) -> nn.Module:
    """The float layer whose weight goes through the format."""
    layer = quantizers.float_layer(layer)
    own = quantizers.weighted(layer)
    if not hasattr(own, "weight"):
        raise ValueError(
            f"{name}: {kind_of(own)} has several weights, which torch.ao quantizes "
            "with classes of its own: quantize it with bs.quantize_, and leave it out of the "
            f"mapping, set_module_name({name!r}, None)"
        )
    own.weight_values = value.values(quantizers.layout_of(own))
    kind: Any = type(own)
    own.__class__ = _reading(kind)
    for each in (layer, own):
        each.qconfig = None  # so that torch.ao's converter leaves the layer as it is
    return layer


@functools.cache
def _reading(kind: Any) -> Any:
    """The class of layers whose weight goes through `weight_values` where it is read. torch's
    parametrizations would do the same under other names, which codes are to keep."""

    def weight(self: Any) -> Tensor:
        return self.weight_values(self._parameters["weight"])

    return type(kind.__name__, (kind,), {"weight": property(weight)})
