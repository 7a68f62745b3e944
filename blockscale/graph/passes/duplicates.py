# SPDX-License-Identifier: BSD-3-Clause
"""Computed twice becomes computed once: equal quantizes of one tensor, equal ops, equal scales.

q(x, s), q(x, s)  ->  one q
"""

from typing import Any

import torch
from torch import Tensor, fx

from blockscale.core.parse import parse
from blockscale.graph.constants import equal_bits, get, is_constant
from blockscale.graph.nodes import aten, calls, ours, quantize_of, replace
from blockscale.graph.passes.fused import read

_PART_OF = (ours.quantize, ours.dequantize, aten.view)  # what reads scales and zero points


def run(graph: fx.GraphModule) -> int:
    """Merge nodes that compute the same of the same, by their bits. Equal to the bit."""
    return _constants(graph) + _calls(graph)


def _constants(graph: fx.GraphModule) -> int:
    """One node for each tensor, whatever names it has, and for scales of equal bits.

    Other constants of equal bits stay two: each is in files under its own name.
    """
    count = 0
    first: dict[Any, list[tuple[fx.Node, Tensor]]] = {}
    for node in list(graph.graph.nodes):
        if not is_constant(node) or not node.users:
            continue
        try:
            tensor = get(graph, node)
        except ValueError:  # a constant that is no tensor
            continue
        parts = all(calls(user, *_PART_OF) for user in node.users)
        alike = first.setdefault((tensor.dtype, tensor.shape, tensor.device), [])
        for other, original in alike:
            if original is tensor or (parts and equal_bits(original, tensor)):
                replace(node, other)
                count += 1
                break
        else:
            alike.append((node, tensor))
    return count


def _calls(graph: fx.GraphModule) -> int:
    count = 0
    first: dict[Any, fx.Node] = {}
    for node in list(graph.graph.nodes):
        if node.op != "call_function" or not _pure(node):
            continue
        key = (node.target, _key(node.args), _key(dict(node.kwargs)))
        other = first.setdefault(key, node)
        if other is not node:
            replace(node, other)
            count += 1
    return count


def _pure(node: fx.Node) -> bool:
    """Whether a node gives the same whenever it is given the same, and does nothing else."""
    schema, tags = getattr(node.target, "_schema", None), getattr(node.target, "tags", ())
    if schema is None:
        return getattr(node.target, "__module__", "") == "_operator"  # getitem, sums of sizes
    if schema.is_mutable or torch.Tag.nondeterministic_seeded in tags or not schema.returns:
        return False
    by = quantize_of(node)
    rounds = by.by if by is not None else getattr(read(node), "y", None)
    chance = rounds is not None and rounds.fmt and parse(rounds.fmt).rounding == "stochastic"
    return not (chance and rounds is not None and rounds.seed is None)


def _key(value: Any) -> Any:
    """Arguments as a key of a dictionary: 1, 1.0 and True are three, as are 0.0 and -0.0."""
    if isinstance(value, list | tuple):
        return tuple(_key(each) for each in value)
    if isinstance(value, dict):
        return tuple((name, _key(each)) for name, each in sorted(value.items()))
    if isinstance(value, slice):
        return ("slice", _key(value.start), _key(value.stop), _key(value.step))
    if isinstance(value, fx.Node):
        return value
    return (type(value), repr(value))
