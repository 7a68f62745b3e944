# SPDX-License-Identifier: BSD-3-Clause
"""Calls of fused ops in a graph, read and written whole. (No pass: what passes share.)"""

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from blockscale.core.operand import UNQUANTIZED, Quantizer, Value
from blockscale.graph.nodes import arguments, aten, call, calls, dequantize_of, quantize_of, value
from blockscale.ops.fused import FUSED, Fused, Match, match


@dataclass
class Call:
    """A call of a fused op, of the nodes of a graph.

    operands, settings: what it computes with; dtype: of its floats; y: how its result is quantized
    """

    fused: Fused
    operands: list[Value]
    settings: dict[str, Any]
    dtype: torch.dtype
    y: Quantizer = UNQUANTIZED

    def write(self, graph: fx.GraphModule, like: fx.Node) -> fx.Node:
        """The node of this call, before `like`; it gives a list."""
        args = self.fused.flatten(self.operands, self.settings, self.dtype, self.y)
        while args and args[-1] is None:
            args = args[:-1]
        return call(graph, self.fused.op.overload, args, like=like)


_BY_TARGET: dict[Any, Fused] = {}


def read(node: Any) -> Call | None:
    """The call that a node of a fused op is; None for others."""
    if not isinstance(node, fx.Node) or node.op != "call_function":
        return None
    if len(_BY_TARGET) != len(FUSED):
        _BY_TARGET.update({each.op.overload: each for each in FUSED.values()})
    fused = _BY_TARGET.get(node.target)
    if fused is None:
        return None
    own = fused.op.signature.bind(*arguments(node).values())
    count = 1 if fused.many else len(fused.operands)
    operands = list(own[0]) if fused.many else list(own[:count])
    settings = dict(zip(fused.settings, own[count:-2], strict=True))
    return Call(fused, operands, settings, own[-2], own[-1])


def result(graph: fx.GraphModule, node: fx.Node, like: fx.Node) -> fx.Node:
    """The tensor that a fused op's node gives first: floats or codes."""
    return call(graph, operator.getitem, (node, 0), like=like)


def taken_out(node: Any) -> Call | None:
    """The call whose floats this node takes out of the list, if nothing else is taken out."""
    if not calls(node, operator.getitem) or node.args[1] != 0:
        return None
    result = read(node.args[0])
    return (
        result if result is not None and not result.y.fmt and len(node.args[0].users) == 1 else None
    )


def only_user(node: fx.Node) -> fx.Node | None:
    """The one node that reads this one, once; None if there are several."""
    users = list(node.users)
    if len(users) != 1 or sum(each is node for each in _inputs(users[0])) != 1:
        return None
    return users[0]


def _inputs(node: fx.Node) -> list[fx.Node]:
    nodes: list[fx.Node] = []
    fx.node.map_arg((node.args, dict(node.kwargs)), nodes.append)
    return nodes


def dtype_of(node: Any) -> torch.dtype | None:
    """Of the tensor that a node gives, if known."""
    result = value(node)
    return result.dtype if isinstance(result, torch.Tensor) else None


def as_value(node: fx.Node, dtype: torch.dtype) -> Value | None:
    """A node as an operand: the codes that it dequantizes to `dtype`, or itself, floats."""
    result = dequantize_of(node)
    if result is None:
        return Value(node)  # type: ignore[arg-type]  # nodes stand for tensors
    return Value(*result.operand) if result.dtype == dtype else None


def widened(node: fx.Node) -> fx.Node:
    """What a conversion to float32 converts, if that widens: a wide op does it by itself."""
    if calls(node, aten.to) and dtype_of(node) == torch.float32:
        before = node.args[0]
        if dtype_of(before) in (torch.bfloat16, torch.float16):
            return before  # type: ignore[return-value]
    return node


def narrow_end(node: fx.Node) -> tuple[fx.Node, torch.dtype | None]:
    """Where a wide op ends, and the dtype there: it includes the conversion of its result."""
    user = only_user(node)
    if user is not None and calls(user, aten.to):
        dtype = dtype_of(user)
        if dtype in (torch.bfloat16, torch.float16) and not arguments(user).get("copy"):
            return user, dtype
    return node, dtype_of(node)


def quantized_by(node: fx.Node) -> tuple[fx.Node, Quantizer] | None:
    """The only node that reads this one, where it quantizes it, and how."""
    user = only_user(node)
    result = quantize_of(user)
    return (user, result.by) if user is not None and result and result.x is node else None


def match_fused(node: fx.Node) -> Match | None:
    """The fused op that computes what the node does, if floats of one dtype go in and come out as
    the fused op would have them."""
    result = match(node)
    if result is None or (dtype_of(node) is None):
        return None
    if result.fused.wide:
        whole = all(dtype_of(each) == torch.float32 for each in (node, *result.operands))
        return result if whole else None
    return result


def put_back(graph: fx.GraphModule, call: Call, last: fx.Node, quantizes: fx.Node | None) -> None:
    """Write a call in the place of `last` or, with its `y`, of the node that quantizes it."""
    if quantizes is None:
        last.replace_all_uses_with(result(graph, call.write(graph, last), last))
    elif call.y.scale is None:
        quantizes.replace_all_uses_with(call.write(graph, quantizes))
    else:
        node = result(graph, call.write(graph, quantizes), quantizes)
        quantizes.replace_all_uses_with(node)
    for each in (quantizes, last):
        if each is not None:
            graph.graph.erase_node(each)
