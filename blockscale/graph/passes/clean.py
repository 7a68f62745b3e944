# SPDX-License-Identifier: BSD-3-Clause
"""Drop what computes nothing: dropout in evaluation, checks, copies that change nothing.

An op that writes into its input becomes the op that does not, where nobody else reads the input:
the passes after this one look at values and not at memory.
"""

from typing import Any

import torch
from torch import Tensor, fx

from blockscale.graph.nodes import (
    arguments,
    aten,
    calls,
    each_call,
    is_known,
    replace,
    same_sizes,
    shape,
    value,
)

_DROPOUT = (aten.dropout, aten.feature_dropout, aten.alpha_dropout)
_SAME = (aten.detach, aten.detach_, aten.alias, aten.lift_fresh)
_COPIES = (aten.clone, aten.lift_fresh_copy, aten._to_copy)
_CHECKS = (aten._assert_tensor_metadata, aten._assert_async, aten._assert_scalar)


def run(graph: fx.GraphModule) -> int:
    """Drop checks, dropout in evaluation, detach, copies and conversions that change nothing, and
    dead code."""
    count = _without_checks(graph) + _without_writes(graph)
    writes = any(_writes(node) for node in graph.graph.nodes)
    for node in list(graph.graph.nodes):
        if _idle(node) or (not writes and _idle_copy(node)):
            replace(node, _input(node))
            count += 1
    before = len(graph.graph.nodes)
    graph.graph.eliminate_dead_code()
    return count + before - len(graph.graph.nodes)


def _input(node: fx.Node) -> fx.Node:
    return next(a for a in arguments(node).values() if isinstance(a, fx.Node))


def _without_checks(graph: fx.GraphModule) -> int:
    """Checks go, but for those of sizes that only data tell: another export needs those."""
    checks = [n for n in each_call(graph, *_CHECKS) if not n.users and not _of_data(n)]
    checks += [
        n
        for n in graph.graph.nodes
        if n.op == "call_module" and n.target == "_guards_fn" and not n.users
    ]
    for node in checks:
        graph.graph.erase_node(node)
        if node.op == "call_module":
            graph.delete_submodule(str(node.target))
    return len(checks)


def _of_data(node: fx.Node) -> bool:
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols  # loads sympy

    return any(
        free_unbacked_symbols(value(each))
        for each in node.all_input_nodes
        if value(each) is not None
    )


def _idle(node: fx.Node) -> bool:
    """Whether the node gives its input, in the same memory."""

    if calls(node, *_SAME):
        return True
    if calls(node, *_DROPOUT):
        inputs = arguments(node)
        return not inputs["train"] or inputs["p"] == 0
    if calls(node, aten.contiguous):
        usual = arguments(node)["memory_format"] in (None, torch.contiguous_format)
        return usual and _contiguous(value(_input(node)))
    if calls(node, aten.to, aten.type_as):
        inputs = arguments(node)
        plain = not inputs.get("copy") and inputs.get("memory_format") in (None, _preserve())
        return plain and _alike(node)
    if calls(node, aten.expand, aten.view, aten.reshape, aten._unsafe_view):
        return same_sizes(shape(node), shape(_input(node)))
    return False


def _idle_copy(node: fx.Node) -> bool:
    """Whether the node copies its input as it is, and nobody outside sees that it is a copy."""
    if not calls(node, *_COPIES) or _input(node).op != "call_function":
        return False
    return _alike(node) and _same_strides(node)


def _preserve() -> torch.memory_format:
    return torch.preserve_format


def _alike(node: fx.Node) -> bool:
    before, after = value(_input(node)), value(node)
    if not isinstance(before, Tensor) or not isinstance(after, Tensor):
        return False
    same = before.dtype == after.dtype and before.device == after.device
    return same and before.layout == after.layout


def _same_strides(node: fx.Node) -> bool:
    before, after = value(_input(node)), value(node)
    return same_sizes(tuple(before.stride()), tuple(after.stride()))


def _contiguous(x: Any) -> bool:
    """Whether a fake tensor is contiguous for every size that symbols may have."""
    if not isinstance(x, Tensor):
        return False
    expected: Any = 1
    for size, stride in zip(reversed(x.shape), reversed(x.stride()), strict=True):
        if not (is_known(size == 1) or is_known(stride == expected)):
            return False
        expected = expected * size
    return True


def _writes(node: fx.Node) -> list[fx.Node]:
    """The arguments that an op writes into."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None or not schema.is_mutable:
        return []
    names = {a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write}
    results = [a for name, a in arguments(node).items() if name in names]
    return [a for a in results if isinstance(a, fx.Node)]


def _aliases(node: fx.Node) -> bool:
    """Whether what the op gives may lie in the memory of its input."""
    schema = getattr(node.target, "_schema", None)
    return schema is None or any(each.alias_info is not None for each in schema.returns)


def _without_writes(graph: fx.GraphModule) -> int:
    """`relu_(x)` -> `relu(x)`, where nobody else can see that x was not written."""
    count = 0
    order = {node: i for i, node in enumerate(graph.graph.nodes)}
    for node in list(graph.graph.nodes):
        plain = _plain(node)
        if plain is None or calls(node, *_SAME):
            continue
        x = _input(node)
        others = [user for user in x.users if user is not node]
        hidden = x.op == "call_function" and not _aliases(x)
        read = any(order[user] > order[node] or _aliases(user) for user in others)
        if hidden and not read:
            node.target = plain
            count += 1
    return count


def _plain(node: fx.Node) -> Any:
    """The op that gives what `node` writes: `aten.relu.default` of `aten.relu_.default`."""
    if len(_writes(node)) != 1:
        return None
    target: Any = node.target
    name, overload = target._schema.name.rpartition("::")[2], target._overloadname
    packet = getattr(aten, name.removesuffix("_"), None) if name.endswith("_") else None
    plain = getattr(packet, overload, None)
    if plain is None or plain._schema.is_mutable:
        return None
    names = [[a.name for a in op._schema.arguments] for op in (plain, target)]
    return plain if names[0] == names[1] else None
