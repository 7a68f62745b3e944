"""Permutes that undo one another go, also around ops that work element by element.

    permute(relu(permute(x, [0, 3, 1, 2])), [0, 2, 3, 1])  ->  relu(x)

So what lies between two convolutions stays channels last, in one piece with them.
"""

from typing import Any

from torch import fx

from blockscale.graph.nodes import aten, call, calls, each_call, same_sizes, shape
from blockscale.graph.passes.fused import matched

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
        pulled = _Pull(graph, order).of(node.args[0]) if order is not None else None
        if pulled is not None:
            node.replace_all_uses_with(pulled)
            graph.graph.erase_node(node)
            count += 1
    return count


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
        self.done: dict[fx.Node, fx.Node | None] = {}

    def of(self, node: Any) -> fx.Node | None:
        """`node` permuted; None if some of what it is made of is not permuted already."""
        if not self._can(node, set()):
            return None
        return self._made(node)

    def _can(self, node: Any, seen: set[fx.Node]) -> bool:
        if node in seen:
            return True
        if (before := permutation(node)) is not None:
            return [before[i] for i in self.order] == list(range(len(self.order)))
        if calls(node, aten.contiguous):
            return self._can(node.args[0], seen)
        found = matched(node) if isinstance(node, fx.Node) else None
        if found is None or found.fused.name not in ELEMENTWISE:
            return False
        sizes = shape(node)
        seen.add(node)
        return all(
            same_sizes(shape(each), sizes) and self._can(each, seen) for each in found.operands
        )

    def _made(self, node: Any) -> fx.Node:
        if permutation(node) is not None:
            return node.args[0]
        if calls(node, aten.contiguous):
            return self._made(node.args[0])
        if (made := self.done.get(node)) is None:
            found = matched(node)
            assert found is not None
            inside = {each: self._made(each) for each in found.operands}
            args, kwargs = fx.node.map_arg(
                (node.args, dict(node.kwargs)), lambda n: inside.get(n, n)
            )
            made = self.done[node] = call(self.graph, node.target, args, kwargs, like=node)
        return made
