# SPDX-License-Identifier: BSD-3-Clause
"""Slices, selections, picked places and expansions of codes."""

from collections.abc import Sequence
from typing import Any

from torch import fx

from blockscale.core.block import WHOLE
from blockscale.core.operand import Operand
from blockscale.core.pack import packed_size
from blockscale.core.parse import parse
from blockscale.graph.nodes import arguments, aten, call, known, shape
from blockscale.graph.passes.moves.blocks import named
from blockscale.graph.passes.moves.parts import changed, dim_of, of_block, outer_of_rank, row_of


def selected(
    graph: fx.GraphModule, node: fx.Node, coded: Operand, sizes: Sequence[int]
) -> Operand | None:
    """One place along a dimension, which goes. None where blocks do not allow."""
    old, fmt = shape(node.args[0]), parse(coded.fmt)
    assert old is not None
    dim, index = dim_of(node, old), arguments(node)["index"]
    size = sizes[dim]
    if dim == len(old) - 1 or len(old) < 2:
        return None
    if size not in (1, WHOLE):
        if not isinstance(index, int) or not isinstance(old[dim], int):
            return None
        at: Any = index % old[dim] // size
    else:
        at = index if size == 1 else 0
    after = [*sizes[:dim], *sizes[dim + 1 :]]

    def change(part: Any) -> Any:
        return call(graph, aten.select.int, (part, dim, at), like=node)

    made = changed(coded, change, of_block(fmt, named(after, fmt.block)), coded.size)
    codes: Any = call(graph, aten.select.int, (coded.codes, dim, index), like=node)
    return outer_of_rank(graph, made._replace(codes=codes), len(after), node)


def sliced(
    graph: fx.GraphModule, node: fx.Node, coded: Operand, sizes: Sequence[int]
) -> Operand | None:
    """A part of a dimension, between blocks. None where blocks do not allow."""
    old, given = shape(node.args[0]), arguments(node)
    assert old is not None
    dim = dim_of(node, old)
    size, start, end, step = sizes[dim], given["start"] or 0, given["end"], given["step"]
    row = row_of(node, old, coded.size)
    if row is None:
        return None
    bounds: Any = (start, end, step)
    if size not in (1, WHOLE):
        bounds = _block_bounds(size, old[dim], start, end, step)
        if bounds is None:
            return None

    def change(part: Any) -> Any:
        if size == WHOLE:
            return part
        return call(graph, aten.slice.Tensor, (part, dim, *bounds), like=node)

    made = changed(coded, change, coded.fmt, row)
    codes: Any = call(graph, aten.slice.Tensor, (coded.codes, dim, start, end, step), like=node)
    return made._replace(codes=codes)


def picked(
    graph: fx.GraphModule, node: fx.Node, coded: Operand, sizes: Sequence[int]
) -> Operand | None:
    """Places along a dimension, by index. None where several of them share a scale."""
    old, index = shape(node.args[0]), arguments(node)["index"]
    assert old is not None
    dim = dim_of(node, old)
    row = row_of(node, old, coded.size)
    if sizes[dim] not in (1, WHOLE) or row is None:
        return None

    def change(part: Any) -> Any:
        if sizes[dim] == WHOLE:
            return part
        return call(graph, aten.index_select.default, (part, dim, index), like=node)

    made = changed(coded, change, coded.fmt, row)
    codes: Any = call(graph, aten.index_select.default, (coded.codes, dim, index), like=node)
    return made._replace(codes=codes)


def _block_bounds(
    size: int, n: Any, start: Any, end: Any, step: int
) -> tuple[int, int, int] | None:
    """The same bounds, counted in blocks; None if they are not between blocks."""
    if step != 1 or not isinstance(n, int):
        return None
    if not isinstance(start, int) or not (end is None or isinstance(end, int)):
        return None
    first, last, _ = slice(start, end).indices(n)
    if first % size or (last % size and last != n):
        return None
    return first // size, (last + size - 1) // size, 1


def expanded(
    graph: fx.GraphModule, node: fx.Node, coded: Operand, sizes: Sequence[int]
) -> Operand | None:
    """Dimensions of one element, seen as if they had more. None where blocks do not allow."""
    old, new, fmt = shape(node.args[0]), shape(node), parse(coded.fmt)
    assert old is not None and new is not None
    if not known(old[-1] == new[-1]) or len(old) != len(new):
        return None
    grown = [not known(a == b) for a, b in zip(old, new, strict=True)]
    if any(g and not known(n == 1) for g, n in zip(grown, old, strict=True)):
        return None
    after = [WHOLE if g else size for g, size in zip(grown, sizes, strict=True)]
    to = list(arguments(node)["size"])
    made = coded._replace(fmt=of_block(fmt, named(after, fmt.block)))
    last = packed_size(fmt.element, new[-1]) if isinstance(new[-1], int) else to[-1]
    codes: Any = call(graph, aten.expand.default, (coded.codes, [*to[:-1], last]), like=node)
    return made._replace(codes=codes)
