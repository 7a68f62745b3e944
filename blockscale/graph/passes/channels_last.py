# SPDX-License-Identifier: BSD-3-Clause
"""Permutes that undo one another go, also around ops that work element by element.

    permute(relu(permute(x, [0, 3, 1, 2])), [0, 2, 3, 1])  ->  relu(x)

So what lies between two convolutions stays channels last, in one piece with them. Quantizing under
one scale is such an op, too. Who else reads what lay between gets it permuted back, and in order.

    relu(permute(fused_conv(...)))  ->  permute(relu(fused_conv(...)))

So an activation stands behind its convolution, whatever reads it.
"""

from typing import Any

from torch import fx

from blockscale.core.parse import parse
from blockscale.graph.nodes import (
    aten,
    call,
    calls,
    dequantize_of,
    each_call,
    is_known,
    quantize_of,
    replace,
    same_sizes,
    shape,
    value,
)
from blockscale.graph.passes.fused import match_fused, taken_out
from blockscale.ops import primitives

_PERMUTES = (aten.permute, aten.transpose, aten.t)
# Without elu, exp, gelu, mish, pow, sigmoid, silu, softplus, tanh: torch's last bits of those
# depend on where in memory an element lies (docs/numerics.md, section 7).
_ONE = ("abs", "clamp", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "neg", "relu")
_NUMBER = ("add_scalar", "div_scalar", "mul_scalar", "rsub_scalar", "sub_scalar")
_TWO = ("add", "div", "maximum", "minimum", "mul", "sub")
ELEMENTWISE = frozenset((*_ONE, "relu6", "sqrt", *_NUMBER, *_TWO))


def run(graph: fx.GraphModule) -> int:
    """Cancel permutes with those before them. Equal to the bit."""
    count = 0
    for node in each_call(graph, *_PERMUTES):
        if not node.users:
            continue
        order = permutation(node)
        pull = None if order is None else _Pull(graph, order)
        result = None if pull is None else pull.of(node.args[0])
        if pull is not None and result is not None:
            node.replace_all_uses_with(result)
            graph.graph.erase_node(node)
            pull.give_back()
            count += 1
        elif pull is not None:
            count += _hoist(graph, node)
    return count + sum(_push(graph, node) for node in list(graph.graph.nodes))


def _push(graph: fx.GraphModule, node: fx.Node) -> bool:
    """Compute before a product's result is permuted, where nothing else reads it."""
    result = match_fused(node)
    if result is None or result.fused.name not in ELEMENTWISE or len(result.operands) != 1:
        return False
    contiguous: Any = result.operands[0]
    permute = contiguous.args[0] if calls(contiguous, aten.contiguous) else contiguous
    order = permutation(permute)
    if order is None or taken_out(permute.args[0]) is None:
        return False
    if any(len(each.users) != 1 for each in (contiguous, permute, permute.args[0])):
        return False
    swap = {contiguous: permute.args[0]}
    args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: swap.get(n, n))
    y = call(graph, node.target, args, kwargs, like=node)  # type: ignore[arg-type]
    y = call(graph, permute.target, (y, *permute.args[1:]), like=node)
    if contiguous is not permute:
        y = call(graph, aten.contiguous.default, (y,), like=node)
    replace(node, y)
    return True


def _hoist(graph: fx.GraphModule, node: fx.Node) -> bool:
    """Permute before a round trip whose codes cannot be permuted, several of them lie in a byte."""
    source: Any = node.args[0]
    x = _round_trip(source)
    if x is None or parse(dequantize_of(source).operand.fmt).bits in (8, 16):  # type: ignore[union-attr]
        return False
    permuted = call(graph, node.target, (x, *node.args[1:]), like=node)  # type: ignore[arg-type]
    replace(node, _through(graph, source, permuted, node))
    return True


def permutation(node: Any) -> list[int] | None:
    """Which dimension of the input each of the result is; None if the node is no permute."""
    rank = len(shape(node) or ())
    if not calls(node, *_PERMUTES) or shape(node) is None:
        return None
    if calls(node, aten.permute):
        return [n % rank for n in node.args[1]]
    order = list(range(rank))
    if rank > 1:
        a, b = (0, 1) if calls(node, aten.t) else node.args[1:3]
        order[a], order[b] = order[b], order[a]
    return order


class _Pull:
    """What a tensor is under a permutation, if that needs no permute."""

    def __init__(self, graph: fx.GraphModule, order: list[int]):
        self.graph, self.order = graph, order
        self.results: dict[fx.Node, fx.Node | None] = {}

    def of(self, node: Any) -> fx.Node | None:
        """`node` permuted; None if some of what it is made of is not permuted already."""
        if not self._can(node, set()):
            return None
        return self._make(node)

    def _can(self, node: Any, visits: set[fx.Node]) -> bool:
        if node in visits:
            return True
        if (before := permutation(node)) is not None:
            return [before[i] for i in self.order] == list(range(len(self.order)))
        if calls(node, aten.contiguous):
            return self._can(node.args[0], visits)
        if (x := _round_trip(node)) is not None:
            visits.add(node)
            return self._can(x, visits)
        result = match_fused(node) if isinstance(node, fx.Node) else None
        if result is None or result.fused.name not in ELEMENTWISE:
            return False
        sizes = shape(node)
        visits.add(node)
        return all(
            same_sizes(shape(each), sizes) and self._can(each, visits) for each in result.operands
        )

    def _make(self, node: Any) -> fx.Node:
        if permutation(node) is not None:
            return node.args[0]
        if calls(node, aten.contiguous):
            return self._make(node.args[0])
        if (value := self.results.get(node)) is None:
            x = _round_trip(node)
            value = (
                self._compute(node)
                if x is None
                else _through(self.graph, node, self._make(x), node)
            )
            self.results[node] = value
        return value

    def _compute(self, node: fx.Node) -> fx.Node:
        result = match_fused(node)
        assert result is not None
        inside = {each: self._make(each) for each in result.operands}
        args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: inside.get(n, n))
        return call(self.graph, node.target, args, kwargs, like=node)  # type: ignore[arg-type]

    def give_back(self) -> None:
        """Let all others that read what was pulled read it from there, as it lay."""
        back = [self.order.index(dim) for dim in range(len(self.order))]
        for node, result in self.results.items():
            rest = [user for user in node.users if user not in self.results]
            if not rest:
                continue
            at = call(self.graph, aten.permute.default, (result, back), like=node)
            if value(node).is_contiguous():
                at = call(self.graph, aten.contiguous.default, (at,), like=node)
            for user in rest:
                user.replace_input_with(node, at)


def _through(graph: fx.GraphModule, node: fx.Node, x: fx.Node, like: fx.Node) -> fx.Node:
    """x through the format that a round trip which ends in `node` has, written before `like`."""
    result = dequantize_of(node)
    assert result is not None
    source: Any = result.operand.codes
    by = quantize_of(source)
    assert by is not None
    codes: Any = call(graph, source.target, primitives.quantize.flatten(x, by.by), like=like)
    size = (shape(x) or (1,))[-1]
    if not isinstance(size, int):
        size = call(graph, aten.sym_size.int, (x, -1), like=like)
    operand = result.operand._replace(codes=codes, size=size)
    return call(graph, node.target, primitives.dequantize.flatten(operand, result.dtype), like=like)  # type: ignore[arg-type]


def _round_trip(node: Any) -> fx.Node | None:
    """What goes through a format of one known scale here, quantized and dequantized."""
    result = dequantize_of(node)
    output = None if result is None else quantize_of(result.operand.codes)
    if result is None or output is None or output.by.scale is None or output.by.seed is not None:
        return None
    operand, by = result.operand, output.by
    parts = [by.scale, by.zero_point]
    alike = (operand.scale, operand.zero_point, operand.fmt) == (*parts, by.fmt)
    plain = parse(by.fmt).block.name == "tensor" and by.outer is None and not by.more
    numbers = all(
        part is None or all(is_known(n == 1) for n in shape(part) or ()) for part in parts
    )
    return output.x if alike and plain and numbers else None
