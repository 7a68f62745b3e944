# SPDX-License-Identifier: BSD-3-Clause
"""Whether a graph computes on integers alone: walked from its nodes, whoever wrote it."""

import operator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx

from blockscale.graph.constants import get, is_constant
from blockscale.graph.lowering.integers.builder import Sum
from blockscale.graph.lowering.integers.fixed import NotIntegerError
from blockscale.graph.nodes import aten, calls, describe, value
from blockscale.ops.integer import INTEGER_OPS

SUMS = "blockscale sums"  # of the graph's meta
LAYERS = ("integer_linear", "integer_conv")
_DOORS = ("integer_quantize", "integer_dequantize")


@dataclass(frozen=True)
class ProductWeights:
    """The weights of one product, as they lie in the graph.

    name, op: of the node; shape: as stored, [n, k]; dtype: of the integers
    terms: the most signed powers of two that one of them is the sum of
    """

    name: str
    op: str
    shape: tuple[int, ...]
    dtype: str
    terms: int

    @property
    def shifts(self) -> bool:
        """Whether each is a power of two or 0, and every product a shift."""
        return self.terms <= 1


@dataclass(frozen=True)
class IntegerAudit:
    """What a walk over a graph found.

    ops: {integer op: how many nodes call it}, moves of integers under "move"
    floats: nodes that compute with floats and are no door, as errors name them
    edges: {dtype of what the others give: how many}
    sums: what is known of each place that sums; () for graphs that bs.graph.lower did not make
    weights: of linear layers and convolutions, with what their products are
    """

    ops: dict[str, int]
    floats: tuple[str, ...]
    edges: dict[str, int]
    sums: tuple[Sum, ...] = ()
    weights: tuple[ProductWeights, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether float32 computes all sums without rounding, whatever the input."""
        return all(each.exact for each in self.sums)

    @property
    def integer(self) -> bool:
        """Whether nothing but the doors knows floats."""
        return not self.floats


def audit_integer(graph: fx.GraphModule) -> IntegerAudit:
    """Walk a graph and count what computes with floats.

    graph: any graph module with values (`meta["val"]`), such as bs.graph.lower gives

    A node computes with floats if a tensor that it takes or gives is of a float dtype. Free of it
    are the graph's inputs, integer_quantize and integer_dequantize, which are where floats come in
    and go out, and the graph's output. A node whose value is not known counts as one that does.
    """
    return replace(_audit_ops(graph), weights=weights(graph))


def name_of(node: fx.Node) -> str:
    """Of the integer op that a node calls; "" for other nodes."""
    return _names().get(node.target, "")


@cache
def _names() -> dict[Any, str]:
    return {op.overload: name for name, op in INTEGER_OPS.items()}


def _audit_ops(graph: fx.GraphModule) -> IntegerAudit:
    """All but the weights, whose numbers have to be looked at."""
    ops: dict[str, int] = {}
    edges: dict[str, int] = {}
    floats = []
    for node in graph.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        name = name_of(node) if node.op == "call_function" else node.op
        if name in _DOORS or not _knows_floats(graph, node):
            if node.op == "call_function":
                key = name or "move"
                ops[key] = ops.get(key, 0) + 1
                result = value(node)
                if isinstance(result, Tensor) and name != "integer_dequantize":
                    dtype = str(result.dtype).removeprefix("torch.")
                    edges[dtype] = edges.get(dtype, 0) + 1
        else:
            floats.append(
                describe(node) if node.op == "call_function" else f"{node.op} {node.target}"
            )
    return IntegerAudit(ops, tuple(floats), edges, graph.meta.get(SUMS, ()))


def weights(graph: fx.GraphModule) -> tuple[ProductWeights, ...]:
    """What the products of a graph's layers multiply by, from its tensors."""
    products = []
    for node in graph.graph.nodes:
        name = name_of(node)
        stored: Any = node.args[1] if name in LAYERS and len(node.args) > 1 else None
        if is_constant(stored):
            tensor = get(graph, stored)
            most = int(terms(tensor).amax()) if tensor.numel() else 0
            dtype = str(tensor.dtype).removeprefix("torch.")
            products.append(ProductWeights(node.name, name, tuple(tensor.shape), dtype, most))
    return tuple(products)


def check(graph: fx.GraphModule) -> None:
    """Raise NotIntegerError that names each node that computes with floats."""
    audit = _audit_ops(graph)
    if not audit.integer:
        raise NotIntegerError(
            "these nodes of an integer graph compute with floats:"
            + "".join(f"\n  {each}" for each in audit.floats)
        )


def _knows_floats(graph: fx.GraphModule, node: fx.Node) -> bool:
    if node.op in ("call_module", "call_method"):
        return True
    if calls(node, aten.sym_size):
        return False  # a size is no value
    return any(_is_float(graph, each) for each in (node, *node.all_input_nodes))


def _is_float(graph: fx.GraphModule, node: fx.Node) -> bool:
    result = value(node)
    if result is None and node.op == "get_attr":
        result = operator.attrgetter(str(node.target))(graph)
    if result is None and node.op == "call_function":
        return True
    values = result if isinstance(result, list | tuple) else [result]
    return any(
        isinstance(each, float | torch.SymFloat)
        or (isinstance(each, Tensor) and (each.is_floating_point() or each.is_complex()))
        for each in values
    )


# Products as shifts and additions: what a weight that is a power of two, or a sum of a few, costs.
#
# Every integer is a sum of signed powers of two; of all such sums the non-adjacent form has the
# fewest terms (Reitwiesner 1960, "Binary arithmetic", section 8). A product with a weight of one
# term is a shift, one of t terms t shifts and t - 1 additions.


def digits(weight: Tensor) -> list[tuple[Tensor, int]]:
    """weight [...] integers below 2^61 -> (digits [...] of -1, 0 and 1, shift) with weight =
    sum of digits << shift: the non-adjacent form."""
    rest, shift, results = weight.to(torch.int64), 0, []
    while bool(rest.any()):
        digit = torch.where(rest & 1 == 1, 2 - (rest & 3), 0)
        if bool(digit.any()):
            results.append((digit.to(torch.int8), shift))
        rest, shift = (rest - digit) >> 1, shift + 1
    return results


def terms(weight: Tensor) -> Tensor:
    """weight [...] integers -> how many signed powers of two each is the sum of, [...] int64."""
    if weight.dtype in (torch.int8, torch.int16):  # far fewer numbers than weights
        least = torch.iinfo(weight.dtype).min
        return _of_every(weight.dtype)[weight.to(torch.int64) - least]
    return _count_terms(weight)


@cache
def _of_every(dtype: torch.dtype) -> Tensor:
    """The terms of each number of a dtype, from the least on."""
    info = torch.iinfo(dtype)
    return _count_terms(torch.arange(info.min, info.max + 1))


def _count_terms(weight: Tensor) -> Tensor:
    count = torch.zeros(weight.shape, dtype=torch.int64)
    for digit, _ in digits(weight):
        count += digit.abs()
    return count
