# SPDX-License-Identifier: BSD-3-Clause
"""Codes and what stands beside them, changed together."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from operator import getitem
from typing import Any

from torch import fx

from blockscale.core.block import Block
from blockscale.core.format import Format
from blockscale.core.operand import Operand
from blockscale.graph.nodes import arguments, aten, call, calls, known, shape
from blockscale.graph.nodes import replace as nodes_replace

Change = Callable[[Any], fx.Node]


def of_block(fmt: Format, block: Block) -> str:
    """The spelling of the format with another block."""
    return replace(fmt, block=block).spelling


def dim_of(node: fx.Node, old: Sequence[Any]) -> int:
    """The dimension that a node works along, from 0."""
    return int(arguments(node).get("dim") or 0) % len(old)


def changed(coded: Operand, change: Change, fmt: str, row: Any) -> Operand:
    """The operand after the same change of its scales and zero points."""
    scale: Any = change(coded.scale)
    zero: Any = None if coded.zero_point is None else change(coded.zero_point)
    return coded._replace(scale=scale, zero_point=zero, fmt=fmt, size=row)


def outer_of_rank(graph: fx.GraphModule, coded: Operand, rank: int, like: fx.Node) -> Operand:
    """The same with a scale of scales of another rank."""
    if coded.outer is None or len(shape(coded.outer) or ()) == rank:
        return coded
    made: Any = call(graph, aten.view.default, (coded.outer, [1] * rank), like=like)
    return coded._replace(outer=made)


def of_rank(graph: fx.GraphModule, coded: Operand, rank: int, like: fx.Node) -> Operand:
    """The same; a scale and zero point of one element, whatever their rank, have this rank."""

    def full(part: Any) -> Any:
        sizes = shape(part)
        if sizes is None or len(sizes) == rank:
            return part
        return call(graph, aten.view.default, (part, [1] * rank), like=like)

    return coded._replace(scale=full(coded.scale), zero_point=full(coded.zero_point))


def row_of(node: fx.Node, old: Sequence[Any], size: Any) -> Any:
    """The size of the result's rows: a number, or the node that it was before."""
    last = (shape(node) or ())[-1]
    if isinstance(last, int):
        return last
    return size if known(last == old[-1]) else None


# Ops that cut a tensor into several, as one slice or selection a piece, which codes can follow.

PIECES = (aten.split, aten.split_with_sizes, aten.chunk, aten.unbind)


def cut(graph: fx.GraphModule, node: fx.Node) -> bool:
    """Take a slice of the input in the place of each piece of `node`, one of PIECES.

    False, and nothing done, where pieces are not known by number, or their sizes are symbols.
    """
    old = shape(node.args[0])
    if old is None or not _by_number(node):
        return False
    dim, source = dim_of(node, old), node.args[0]
    if calls(node, aten.unbind):
        for piece in list(node.users):
            nodes_replace(
                piece, call(graph, aten.select.int, (source, dim, piece.args[1]), like=piece)
            )
        return True
    sizes = _sizes(node, old[dim])
    if sizes is None:
        return False
    starts = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    for piece in list(node.users):
        index: Any = piece.args[1]
        bounds = starts[index % len(sizes)], starts[index % len(sizes) + 1]
        nodes_replace(piece, call(graph, aten.slice.Tensor, (source, dim, *bounds), like=piece))
    return True


def _by_number(node: fx.Node) -> bool:
    return all(
        user.target is getitem and isinstance(user.args[1], int) and user.args[0] is node
        for user in node.users
    )


def _sizes(node: fx.Node, whole: Any) -> list[int] | None:
    """The sizes of the pieces of a dimension."""
    given = arguments(node)
    each = given.get("split_sizes", given.get("split_size", given.get("chunks")))
    if isinstance(each, (list, tuple)):
        return list(each) if all(isinstance(size, int) for size in each) else None
    if not isinstance(whole, int) or not isinstance(each, int):
        return None
    return list(_even(whole, -(-whole // each) if calls(node, aten.chunk) else each))


def _even(whole: int, size: int) -> Iterator[int]:
    for start in range(0, whole, max(size, 1)):
        yield min(size, whole - start)
