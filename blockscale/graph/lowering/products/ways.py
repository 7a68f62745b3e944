# SPDX-License-Identifier: BSD-3-Clause
"""The ways to run a linear layer on a CPU.

kernel    our kernel of the op, on codes
inside    our kernel of `linear` on floats, which quantizes them itself; then what follows
onednn    oneDNN's product of 8-bit integers
composed  decoded, multiplied as floats, encoded
"""

import operator
from typing import Any

import torch
from torch import fx

from blockscale.core.operand import Operand, Quantizer, Value
from blockscale.graph.constants import get, is_constant
from blockscale.graph.lowering import onednn
from blockscale.graph.lowering.kernels import has_kernel, misses
from blockscale.graph.lowering.products.product import Parts, floats_of
from blockscale.graph.nodes import call, ours
from blockscale.kernels.registry import supporting
from blockscale.ops.fused import FUSED
from blockscale.ops.linear import linear
from blockscale.ops.primitives import choose_quantize, quantize

WAYS = ("kernel", "inside", "onednn", "composed")
_AFTER = {"relu": torch.ops.aten.relu.default, "silu": torch.ops.aten.silu.default,
          "sigmoid": torch.ops.aten.sigmoid.default, "tanh": torch.ops.aten.tanh.default,
          "relu6": torch.ops.aten.relu6.default, "hardswish": torch.ops.aten.hardswish.default,
          "gelu": torch.ops.aten.gelu.default}  # fmt: skip
Quantized = dict[tuple[object, ...], Value]  # codes by what they are of


def refused(parts: Parts) -> dict[str, str | None]:
    """{way: why it cannot run this product, or None}."""
    return {
        "kernel": None if has_kernel(parts.node, "cpu") else "no kernel takes these formats",
        "inside": inside(parts, "cpu"),
        "onednn": onednn.unavailable() or _onednn(parts),
        "composed": misses(parts.node, "cpu") if parts.fused else "it came as one op",
    }


def inside(parts: Parts, backend: str) -> str | None:
    """Why the backend's kernel of `linear` cannot quantize x itself for this product, or None."""
    if not parts.x.fmt and has_kernel(parts.node, backend):
        return "it has floats already, and a kernel of its own"
    found = floats_of(parts)
    if found is None:
        return "the floats that x was quantized from are not there"
    if isinstance(parts.x.data, fx.Node) and len(parts.x.data.users) > 1:
        return "its codes have other readers, and would be made again"
    if "val" not in found[0].meta or found[0].meta["val"].dtype != parts.dtype:
        return "it gives results of its floats' dtype, and they are of another"
    if parts.activation and parts.activation not in _AFTER:
        return f"no op for {parts.activation} alone"
    formats = (parts.weight.fmt, parts.x.fmt)
    return None if supporting("linear", backend, formats, ()) else "no kernel takes these formats"


def _onednn(parts: Parts) -> str | None:
    given = parts.y.scale is not None
    fmt = parts.x.fmt or parts.input.fmt
    return onednn.refuses(fmt, parts.weight.fmt, parts.activation, parts.y.fmt, given)


def rewrite(graph: fx.GraphModule, parts: Parts, way: str, quantized: Quantized) -> None:
    """Let the node run in this way. It may be replaced; it computes the same up to its ulps.

    quantized: codes that earlier calls made, which equal ones use too
    """
    if way == "onednn":
        _as_onednn(graph, parts, quantized)
    elif way == "inside":
        _as_inside(graph, parts)


def _as_onednn(graph: fx.GraphModule, parts: Parts, quantized: Quantized) -> None:
    node = parts.node
    if parts.x.fmt:  # it takes the same arguments
        node.target = onednn.LINEAR
        return
    value = _codes_of(graph, parts, quantized)
    fused, settings = FUSED["linear"], {"bias": parts.bias, "activation": ""}
    args = fused.flatten([value, parts.weight], settings, parts.dtype, parts.y)
    _first_of(graph, call(graph, onednn.LINEAR, args, like=node), node)


def _codes_of(graph: fx.GraphModule, parts: Parts, quantized: Quantized) -> Value:
    """The codes of floats x, which other products of x use too."""
    by, size = parts.input, parts.weight.size
    x: Any = parts.x.data  # a node, as are all tensors of parts
    key = (x, by.fmt, _told(graph, by.scale), _told(graph, by.zero_point))
    if key in quantized:
        return quantized[key]
    if by.scale is not None:
        codes: Any = call(graph, ours.quantize.default, quantize.flatten(x, by), like=parts.node)
        quantized[key] = Value(codes, by.scale, by.zero_point, None, by.fmt, size)
        return quantized[key]
    args = choose_quantize.flatten(x, by.fmt, by.seed)
    made = call(graph, ours.choose_quantize.default, args, like=parts.node)
    count = 1 + len(by.format.parts)
    found: list[Any] = [
        call(graph, operator.getitem, (made, i), like=parts.node) for i in range(count)
    ]
    zero = found[2] if count > 2 else None
    quantized[key] = Value(found[0], found[1], zero, None, by.fmt, size)
    return quantized[key]


def _told(graph: fx.GraphModule, part: object) -> object:
    """A scale or a zero point, so that views of equal constants are equal."""
    if not isinstance(part, fx.Node):
        return repr(part)
    if is_constant(part):
        tensor = get(graph, part)
        return (str(tensor.dtype), *tensor.reshape(-1).tolist())
    if part.op != "call_function":
        return part
    return (str(part.target), *(_told(graph, each) for each in part.args))


def _as_inside(graph: fx.GraphModule, parts: Parts) -> None:
    found = floats_of(parts)
    assert found is not None
    (x, by), node = found, parts.node
    args = linear.flatten(x, Operand(*parts.weight), parts.bias, by)  # type: ignore[arg-type]
    y = call(graph, ours.linear.default, args, like=node)
    if parts.activation:
        y = call(graph, _AFTER[parts.activation], (y,), like=node)
    _quantized(graph, y, parts.y, node)


def _quantized(graph: fx.GraphModule, y: fx.Node, by: Quantizer, node: fx.Node) -> None:
    """Let the users of `node`, a list of results, take what quantizing y gives."""
    if by.fmt and by.scale is None:
        made = call(
            graph, ours.choose_quantize.default, choose_quantize.flatten(y, by.fmt, by.seed),
            like=node,
        )  # fmt: skip
        node.replace_all_uses_with(made)
        graph.graph.erase_node(node)
        return
    if by.fmt:
        y = call(graph, ours.quantize.default, quantize.flatten(y, by), like=node)
    for user in list(node.users):
        user.replace_all_uses_with(y)
        graph.graph.erase_node(user)
    graph.graph.erase_node(node)


def _first_of(graph: fx.GraphModule, made: fx.Node, node: fx.Node) -> None:
    """Let the users of `node`, one tensor, take the first of a list of results."""
    first = call(graph, operator.getitem, (made, 0), like=node)
    node.replace_all_uses_with(first)
    graph.graph.erase_node(node)
