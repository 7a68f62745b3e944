# SPDX-License-Identifier: BSD-3-Clause
"""Codes and what stands beside them, changed together."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import fx

from blockscale.core.block import Block
from blockscale.core.format import Format
from blockscale.core.operand import Operand
from blockscale.graph.nodes import arguments, aten, call, known, shape

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
