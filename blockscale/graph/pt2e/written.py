# SPDX-License-Identifier: BSD-3-Clause
"""What stands in a graph for a layer's tensors on their way through a format.

A convolution's input goes through it with its channels last, a weight as the matrix that layers
store (blockscale.core.layout).
"""

from torch import Tensor, fx

from blockscale.core.format import Format
from blockscale.core.layout import from_stored, of_convolution, to_stored
from blockscale.core.operand import FIRST, Quantizer
from blockscale.core.reference import QParams
from blockscale.graph import constants
from blockscale.graph.expand import quantized
from blockscale.graph.nodes import aten, call, inlined


def activation(
    graph: fx.GraphModule, x: fx.Node, by: Quantizer, layout: str, rank: int, *, like: fx.Node
) -> fx.Node:
    """x [...] -> the values that the format leaves of it, in its dtype, written before `like`.

    layout, rank: of the weight of x's layer
    """
    value = x.meta["val"]
    if not of_convolution(layout):
        return quantized(graph, x, by, value.dtype, like)
    channel = value.ndim - rank + 1  # 0 without a batch
    order = [dim for dim in range(value.ndim) if dim != channel] + [channel]
    last = call(graph, aten.permute.default, (x, order), like=like)
    y = quantized(graph, last, by, value.dtype, like)
    back = [order.index(dim) for dim in range(value.ndim)]
    return call(graph, aten.permute.default, (y, back), like=like)


def weight(graph: fx.GraphModule, w: fx.Node, fmt: str, layout: str, *, like: fx.Node) -> fx.Node:
    """The same for a weight, which chooses its scale."""
    shape, dtype = tuple(w.meta["val"].shape), w.meta["val"].dtype
    if layout == "plain":
        return quantized(graph, w, Quantizer(None, None, None, fmt), dtype, like)
    stored = inlined(graph, lambda dense: to_stored(dense, layout), w, like)
    y = quantized(graph, stored, Quantizer(None, None, None, fmt), dtype, like)
    return inlined(graph, lambda values: from_stored(values, layout, shape), y, like)


def static(
    graph: fx.GraphModule, qparams: QParams, fmt: Format, name: str, like: fx.Node
) -> Quantizer:
    """How a tensor is quantized by a scale that is known: its parts as buffers `name`.scale, …"""
    parts = {
        part: _buffer(graph, f"{name}.{part}", getattr(qparams, part), like) for part in fmt.parts
    }
    scale, zero_point, outer = (parts.get(part) for part in ("scale", "zero_point", "outer"))
    more = [node for part, node in parts.items() if part not in FIRST]
    return Quantizer(scale, zero_point, outer, str(fmt), None, more or None)  # type: ignore[arg-type]


def _buffer(graph: fx.GraphModule, name: str, part: Tensor, like: fx.Node) -> fx.Node:
    """The node that reads the buffer of this name, the one that is there where it has this value:
    edges that share an observer share its scale."""
    for node in graph.graph.find_nodes(op="get_attr"):
        if node.target == name and constants.equal_bits(constants.get(graph, node), part):
            return node
    return constants.put(graph, name, part, like=like)
