# SPDX-License-Identifier: BSD-3-Clause
"""What depends on constants alone is computed now.

    quantize(get_attr weight)  ->  get_attr weight.codes

A dequantize stays: its result would be a float copy of a quantized weight. So does what would grow:
a mask of a million ones is cheaper made than stored.
"""

import operator
from typing import Any

import torch
from torch import Tensor, fx

from blockscale.core.parse import parse
from blockscale.graph.constants import get, is_constant, put_constant
from blockscale.graph.nodes import aten, calls, ours, quantize_of, replace, scope
from blockscale.kernels.registry import use

_UNSET = (aten.empty, aten.empty_strided, aten.new_empty, aten.empty_like)
_GROWS = 1 << 20  # bytes: more than this and more than it was made of stays an op


def run(graph: fx.GraphModule) -> int:
    """Fold each op of constants whose readers are others. Equal to the bit."""
    constants = _Constants(graph)
    folded = [node for node in list(graph.graph.nodes) if constants.is_last(node)]
    results = [(_constant(graph, node, constants), constants.names[node]) for node in folded]
    graph.graph.eliminate_dead_code()
    for node in list(graph.graph.nodes):
        if is_constant(node) and not node.users:
            graph.graph.erase_node(node)
    values = {str(node.target) for node in graph.graph.nodes if is_constant(node)}
    for node, name in results:
        if name not in values:  # nobody reads what had the name any more
            replace(node, put_constant(graph, name, get(graph, node), like=node))
    return len(results)


def _constant(graph: fx.GraphModule, node: fx.Node, constants: "_Constants") -> fx.Node:
    """A constant for those readers of the node whose result is not known."""
    result = constants.values[node]
    whole = result.untyped_storage().nbytes() == result.numel() * result.element_size()
    constant = put_constant(
        graph, constants.names[node], result if whole else result.clone(), like=node
    )
    for user in list(node.users):
        if user not in constants.values:
            user.replace_input_with(node, constant)
    return constant


class _Constants:
    """What nodes give that depend on constants alone."""

    def __init__(self, graph: fx.GraphModule):
        self.graph = graph
        self.names: dict[fx.Node, str] = {}
        self.values: dict[fx.Node, Any] = {}
        for node in graph.graph.nodes:
            self._learn(node)

    def is_last(self, node: fx.Node) -> bool:
        """Whether the node gives a known tensor to a reader that gives something unknown."""
        if node.op != "call_function" or not isinstance(self.values.get(node), Tensor):
            return False
        return any(user not in self.values for user in node.users)

    def _learn(self, node: fx.Node) -> None:
        if is_constant(node):
            try:
                self.values[node] = get(self.graph, node).detach()
            except ValueError:  # a constant that is no tensor
                return
            self.names[node] = str(node.target)
        elif _foldable(node) and all(each in self.values for each in node.all_input_nodes):
            args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), self.values.get)
            with torch.no_grad(), use("reference"):
                result = node.target(*args, **kwargs)  # type: ignore[operator]
            if _small_enough(result, [self.values[each] for each in node.all_input_nodes]):
                self.values[node] = result
                self.names[node] = self._name(node)

    def _name(self, node: fx.Node) -> str:
        """That of the one constant it was made of, `.codes` and parts as in our files."""
        inputs = node.all_input_nodes
        if not inputs or (len(inputs) != 1 and quantize_of(node) is None):
            return f"{scope(node)}.{node.name}".lstrip(".")
        first = self.names[inputs[0]]
        if calls(node, ours.quantize):
            return f"{first}.codes"
        if calls(node, operator.getitem) and calls(inputs[0], ours.choose_quantize):
            parts = ("codes", *parse(str(inputs[0].args[1])).parts)
            return f"{first}.{parts[node.args[1]]}"  # type: ignore[index]
        return first


def _foldable(node: fx.Node) -> bool:
    """Whether the op may run now: it gives tensors by nothing but its arguments."""
    if node.op != "call_function" or calls(node, ours.dequantize, *_UNSET):
        return False
    if node.target is operator.getitem:
        return True
    schema, tags = getattr(node.target, "_schema", None), getattr(node.target, "tags", ())
    if schema is None or schema.is_mutable or torch.Tag.nondeterministic_seeded in tags:
        return False
    if schema.name.startswith("blockscale::") and quantize_of(node) is None:
        return False  # it dequantizes inside
    by = quantize_of(node)
    return by is None or parse(by.by.fmt).rounding != "stochastic"


def _small_enough(value: Any, inputs: list[Any]) -> bool:
    sizes = [_bytes(each) for each in inputs]
    return _bytes(value) <= max(_GROWS, *sizes, 0)


def _bytes(of: Any) -> int:
    if isinstance(of, list | tuple):
        return sum(_bytes(each) for each in of)
    return of.numel() * of.element_size() if isinstance(of, Tensor) else 0
