# SPDX-License-Identifier: BSD-3-Clause
"""Ops that cut a tensor into several, as one slice or selection a piece, which codes can follow."""

from collections.abc import Iterator
from operator import getitem
from typing import Any

from torch import fx

from blockscale.graph.nodes import arguments, aten, call, calls, replace, shape
from blockscale.graph.passes.moves.parts import dim_of

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
            replace(piece, call(graph, aten.select.int, (source, dim, piece.args[1]), like=piece))
        return True
    sizes = _sizes(node, old[dim])
    if sizes is None:
        return False
    starts = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    for piece in list(node.users):
        index: Any = piece.args[1]
        bounds = starts[index % len(sizes)], starts[index % len(sizes) + 1]
        replace(piece, call(graph, aten.slice.Tensor, (source, dim, *bounds), like=piece))
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
