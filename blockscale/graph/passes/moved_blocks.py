# SPDX-License-Identifier: BSD-3-Clause
"""What stands beside codes that are moved: pieces of scales, and the block that they have then."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from operator import getitem
from typing import Any

from torch import fx

from blockscale.core.block import WHOLE, Block, read_block
from blockscale.core.format import Format
from blockscale.core.operand import Operand
from blockscale.graph.nodes import arguments, aten, call, calls, is_known, shape
from blockscale.graph.nodes import replace as nodes_replace

# Codes and what stands beside them, changed together.


Change = Callable[[Any], fx.Node]


def of_block(fmt: Format, block: Block) -> str:
    """The spelling of the format with another block."""
    return replace(fmt, block=block).spelling


def dim_of(node: fx.Node, old: Sequence[Any]) -> int:
    """The dimension that a node works along, from 0."""
    return int(arguments(node).get("dim") or 0) % len(old)


def change_parts(operand: Operand, change: Change, fmt: str, row: Any) -> Operand:
    """The operand after the same change of its scales and zero points."""
    scale: Any = change(operand.scale)
    zero: Any = None if operand.zero_point is None else change(operand.zero_point)
    return operand._replace(scale=scale, zero_point=zero, fmt=fmt, size=row)


def outer_of_rank(graph: fx.GraphModule, operand: Operand, rank: int, like: fx.Node) -> Operand:
    """The same with a scale of scales of another rank."""
    if operand.outer is None or len(shape(operand.outer) or ()) == rank:
        return operand
    value: Any = call(graph, aten.view.default, (operand.outer, [1] * rank), like=like)
    return operand._replace(outer=value)


def of_rank(graph: fx.GraphModule, operand: Operand, rank: int, like: fx.Node) -> Operand:
    """The same; a scale and zero point of one element, whatever their rank, have this rank."""

    def full(part: Any) -> Any:
        sizes = shape(part)
        if sizes is None or len(sizes) == rank:
            return part
        return call(graph, aten.view.default, (part, [1] * rank), like=like)

    return operand._replace(scale=full(operand.scale), zero_point=full(operand.zero_point))


def row_of(node: fx.Node, old: Sequence[Any], size: Any) -> Any:
    """The size of the result's rows: a number, or the node that it was before."""
    last = (shape(node) or ())[-1]
    if isinstance(last, int):
        return last
    return size if is_known(last == old[-1]) else None


# Ops that cut a tensor into several, as one slice or selection a piece, which codes can follow.

PIECES = (aten.split, aten.split_with_sizes, aten.chunk, aten.unbind)


def cut_pieces(graph: fx.GraphModule, node: fx.Node) -> bool:
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
    inputs = arguments(node)
    each = inputs.get("split_sizes", inputs.get("split_size", inputs.get("chunks")))
    if isinstance(each, (list, tuple)):
        return list(each) if all(isinstance(size, int) for size in each) else None
    if not isinstance(whole, int) or not isinstance(each, int):
        return None
    return list(_even(whole, -(-whole // each) if calls(node, aten.chunk) else each))


def _even(whole: int, size: int) -> Iterator[int]:
    for start in range(0, whole, max(size, 1)):
        yield min(size, whole - start)


# Which block a tensor's scales have after its shape has changed, if that block has a name.
#
# Sizes are those of Block.sizes_for: one a dimension, WHOLE for all of it. Dimensions may be
# symbols: what holds only for some of their values is answered with no.

Sizes = tuple[int, ...]
Group = tuple[list[int], list[int]]  # dimensions of the old shape that become those of the new


def block_of(sizes: Sequence[int], like: Block) -> Block:
    """The block of these sizes: `like` itself where it has them, else by its usual name."""
    rank = len(sizes)
    try:
        if like.sizes_for(rank) == tuple(sizes):
            return like
    except ValueError:  # a dimension that there is not any more
        pass
    if all(size == WHOLE for size in sizes):
        return read_block("tensor")
    ones = [i for i, size in enumerate(sizes) if size != WHOLE]
    if len(ones) == 1 and sizes[ones[0]] == 1:
        return read_block(f"channel{-1 if ones[0] == rank - 1 else ones[0]}")
    larger = [i for i, size in enumerate(sizes) if size != 1]
    if len(larger) == 1 and sizes[larger[0]] != WHOLE:
        return read_block(f"group{sizes[larger[0]]}@{larger[0] - rank}")
    return read_block("block" + "x".join("*" if size == WHOLE else str(size) for size in sizes))


def groups(old: Sequence[Any], new: Sequence[Any]) -> list[Group] | None:
    """The dimensions of a view's input and of its result, in groups of as many elements each.

    From the left to the right; None where it cannot be told for every size of the symbols.
    """
    members: list[Group] = []
    i, j = len(old), len(new)
    while i and j:
        lengths = sorted(product(range(1, i + 1), range(1, j + 1)), key=sum)
        fits = (n for n in lengths if is_known(prod(old[i - n[0] : i]) == prod(new[j - n[1] : j])))
        names = next(fits, None)
        if names is None:
            return None
        i, j = i - names[0], j - names[1]
        members.insert(0, ([*range(i, i + names[0])], [*range(j, j + names[1])]))
    if not is_known(prod(old[:i]) == 1) or not is_known(prod(new[:j]) == 1):
        return None
    return [([*range(i)], [*range(j)]), *members] if i or j else members


def through_view(
    sizes: Sequence[int], old: Sequence[Any], new: Sequence[Any], rest: int
) -> Sizes | None:
    """The sizes after a view from the shape `old` to `new`; None where there are none.

    rest: the size along a dimension of one element that is new: Block.rest.
    """
    parts = groups(old, new)
    if parts is None:
        return None
    result = [rest] * len(new)
    for left, right in parts:
        whole = [(i, sizes[i]) for i in left if not is_known(old[i] == 1)]
        there = [j for j in right if not is_known(new[j] == 1)]
        new_sizes = _through(
            [s for _, s in whole], [old[i] for i, _ in whole], [new[j] for j in there]
        )
        if new_sizes is None:
            return None
        for j, size in zip(there, new_sizes, strict=True):
            result[j] = size
    return tuple(result)


def _through(sizes: list[int], old: list[Any], new: list[Any]) -> list[int] | None:
    """The same for dimensions that are merged, or split, or both."""
    if len(old) == len(new) == 1:
        return sizes
    if all(size == 1 for size in sizes) or all(size == WHOLE for size in sizes):
        return [sizes[0]] * len(new) if sizes else []
    run = _run(sizes, old)
    return None if run is None else _split(run, new)


def _run(sizes: list[int], old: list[Any]) -> int | None:
    """How many neighbours in memory share a scale; None if blocks are no such runs."""
    run, open_ = 1, True
    for size, n in zip(reversed(sizes), reversed(old), strict=True):
        full = size == WHOLE or is_known(n == size)
        if not open_:
            if size != 1:
                return None
        elif full and isinstance(n, int):
            run *= n
        elif not full and size >= 1 and is_known(n % size == 0):
            run, open_ = run * size, False
        else:
            return None
    return run


def _split(run: int, new: list[Any]) -> list[int] | None:
    """Runs of this length as blocks of the new dimensions."""
    numbers: list[int] = []
    for n in reversed(new):
        if run == 1:
            numbers.insert(0, 1)
        elif is_known(n % run == 0):
            numbers.insert(0, run)
            run = 1
        elif isinstance(n, int) and run % n == 0:
            numbers.insert(0, n)
            run //= n
        else:
            return None
    return numbers if run == 1 else None


def counts(sizes: Sequence[int], shape: Sequence[Any]) -> list[Any]:
    """How many blocks there are along each dimension."""
    return [
        1 if size == WHOLE else (n if size == 1 else (n + size - 1) // size)
        for size, n in zip(sizes, shape, strict=True)
    ]
