"""Masks that are computed from inputs: which tokens are there, compared and joined."""

from typing import Any

import torch
from torch import Tensor, fx

from blockscale.export.to_c.text import loops, number
from blockscale.export.to_c.values import C_TYPES
from blockscale.export.to_c.writer import Writer
from blockscale.graph.lower.integers.fixed import NotIntegerError
from blockscale.graph.names import described
from blockscale.graph.nodes import aten, calls

_JOINED = {  # of truth values, which are 0 or 1
    "&": (aten.__and__, aten.bitwise_and, aten.logical_and),
    "|": (aten.__or__, aten.bitwise_or, aten.logical_or),
}
_COMPARED = {
    "==": aten.eq, "!=": aten.ne, "<": aten.lt, "<=": aten.le, ">": aten.gt, ">=": aten.ge,
}  # fmt: skip
_NOT = (aten.logical_not, aten.bitwise_not)
_CAST = (aten.to, aten._to_copy)


def computes_mask(node: fx.Node) -> bool:
    """Whether `mask` knows what a node calls."""
    joined = (each for some in _JOINED.values() for each in some)
    return calls(node, *joined, *_COMPARED.values(), *_NOT, *_CAST)


def mask(w: Writer, node: fx.Node, made: Tensor) -> None:
    """A step for a comparison, a junction of truth values, or truth values of integers.

    made: what the node gave for the example: its shape and dtype

    Raises NotIntegerError for operands that are floats or no truth values, and for integers that
    the result's dtype does not hold.
    """
    given = [each for each in node.args if isinstance(each, fx.Node | int | bool)]
    if calls(node, *_CAST):
        given = given[:1]
    reads = {f"x{i}": each for i, each in enumerate(given) if isinstance(each, fx.Node)}
    if any(each not in w.places for each in reads.values()):
        raise NotIntegerError(
            f"{described(node)} ({node.name}) has no C form: it reads no integers"
        )
    found = {k: w.access(w.places[v].expand(made.shape), v) for k, v in reads.items()}
    names, heads, ends = loops(made.shape)
    words = [f"x{i}[{found[f'x{i}'].at(names)}]" if isinstance(each, fx.Node)
             else number(int(each))
             for i, each in enumerate(given)]  # fmt: skip
    y = w.result(made.dtype, made.shape, node)
    value = _value(node, words, [each.array.dtype for each in found.values()], made.dtype)
    takes: dict[str, Any] = {**found}
    w.step(node, "mask", takes, y, [*heads, f"y[{y.at(names)}] = {value};", *ends])
    w.keep(node, y)


def _value(node: fx.Node, words: list[str], dtypes: list[torch.dtype], made: torch.dtype) -> str:
    """The C expression of an element."""
    truths = all(each == torch.bool for each in dtypes)
    for sign, compared in _COMPARED.items():
        if calls(node, compared):
            return f"{words[0]} {sign} {words[1]}"
    for sign, some in _JOINED.items():
        if calls(node, *some) and truths and made == torch.bool:
            return f"{words[0]} {sign} {words[1]}"
    if calls(node, *_NOT) and truths:
        return f"!{words[0]}"
    if calls(node, *_CAST) and made == torch.bool:
        return f"{words[0]} != 0"
    if calls(node, *_CAST) and made in C_TYPES and (truths or made == torch.int64):
        return f"({C_TYPES[made]}){words[0]}"
    raise NotIntegerError(f"{described(node)} ({node.name}) has no C form: it is no mask of bools")
