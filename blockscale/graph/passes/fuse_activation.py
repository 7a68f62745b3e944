# SPDX-License-Identifier: BSD-3-Clause
"""An activation behind a product becomes part of it.

fused_linear -> gelu -> q   ->   fused_linear(activation="gelu", y...)
"""

from torch import fx

from blockscale.core.operand import Value
from blockscale.graph.passes.fused import (
    Call,
    dtype_of,
    match_fused,
    only_user,
    put_back,
    quantized_by,
    read,
    taken_out,
)


def run(graph: fx.GraphModule) -> int:
    """Take the activation, and what quantizes its result, into the product. Equal to the bit."""
    count = 0
    for node in list(graph.graph.nodes):
        if node._erased or (result := taken_out(node)) is None:
            continue
        user = only_user(node)
        if user is None or result.settings.get("activation", None) != "":
            continue
        behind = _behind(user, node)
        name = _name(behind) if behind is not None else ""
        if behind is None or not name or behind.dtype != result.dtype:
            continue
        result.settings["activation"] = name
        _write(graph, result, node, user, behind)
        count += 1
    return count


def activation_of(user: fx.Node, node: fx.Node) -> str:
    """The activation that `user` computes of `node` and a product could end in; "" if none."""
    behind = _behind(user, node)
    return "" if behind is None else _name(behind)


def _behind(user: fx.Node, node: fx.Node) -> Call | None:
    """What the user computes of `node`, an op of aten or a fused one."""
    fused = read(user)
    if fused is not None:
        plain = len(fused.operands) == 1 and fused.operands[0] == Value(node)  # type: ignore[arg-type]
        return fused if plain else None
    result, dtype = match_fused(user), dtype_of(user)
    if result is None or dtype is None or result.operands != (node,):
        return None
    return Call(result.fused, [Value(node)], result.settings, dtype)  # type: ignore[arg-type]


def _name(behind: Call) -> str:
    """The activation that a product has for it; "" if it has none."""
    name, settings = behind.fused.name, behind.settings
    if name == "gelu":
        return "gelu_tanh" if settings["approximate"] == "tanh" else "gelu"
    if name == "hardtanh" and (settings["min_val"], settings["max_val"]) == (0.0, 6.0):
        return "relu6"
    plain = ("relu", "relu6", "silu", "hardswish", "sigmoid", "tanh")
    return name if name in plain and not settings else ""


def _write(graph: fx.GraphModule, call: Call, node: fx.Node, user: fx.Node, behind: Call) -> None:
    """Let the product end where the activation did."""
    if read(user) is not None:  # it gives a list, as the product will
        call.y = behind.y
        user.replace_all_uses_with(call.write(graph, user))
        graph.graph.erase_node(user)
    else:
        quantizes, by = quantized_by(user) or (None, None)
        call.y = by or call.y
        put_back(graph, call, user, quantizes)
    product = node.args[0]
    graph.graph.erase_node(node)
    graph.graph.erase_node(product)  # type: ignore[arg-type]
