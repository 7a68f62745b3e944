# SPDX-License-Identifier: BSD-3-Clause
"""Ops that only move elements work on codes, before they are dequantized.

    view(dq(codes, scale))  ->  dq(view(codes), view(scale))

So codes travel, which are smaller, and meet the op that reads them or the quantize that they cancel
with. It is done where a block says what the scales are of afterwards; elsewhere the floats move.
Weights stay as they are stored.
"""

from torch import fx

from blockscale.core.operand import Operand
from blockscale.graph.constants import is_constant
from blockscale.graph.nodes import (
    Dequantize,
    aten,
    call,
    calls,
    dequantize_of,
    each_call,
    ours,
    quantize_of,
    replace,
)
from blockscale.graph.passes.fused import matched
from blockscale.graph.passes.moves.cuts import joined, padded
from blockscale.graph.passes.moves.moved import MOVES, moved
from blockscale.graph.passes.moves.parts import PIECES, cut
from blockscale.ops import primitives

_JOINS = (aten.cat, aten.concat, aten.concatenate)
_PADS = (aten.constant_pad_nd, aten.pad)


def run(graph: fx.GraphModule) -> int:
    """Move codes in the place of floats. Equal to the bit."""
    count = sum(
        _movable(node.args[0]) is not None and cut(graph, node)
        for node in each_call(graph, *PIECES)
    )
    for node in each_call(graph, *MOVES, *_JOINS, *_PADS):
        if not node.users:
            continue
        sources = node.args[0] if calls(node, *_JOINS) else [node.args[0]]
        found = [_movable(each) for each in sources]  # type: ignore[union-attr]
        if not found or None in found:
            continue
        whole = [each for each in found if each is not None]
        if len({each.dtype for each in whole}) > 1:
            continue
        coded = _after(graph, node, [each.coded for each in whole])
        if coded is not None:
            args = primitives.dequantize.flatten(coded, whole[0].dtype)
            replace(node, call(graph, ours.dequantize.default, args, like=node))
            count += 1
    return count


def _movable(node: object) -> Dequantize | None:
    """Codes that are computed, dequantized by the node."""
    found = dequantize_of(node)
    return None if found is None or is_constant(found.coded.codes) else found


def _after(graph: fx.GraphModule, node: fx.Node, each: list[Operand]) -> Operand | None:
    if calls(node, *_JOINS):
        return joined(graph, node, each)
    if calls(node, *_PADS):
        return padded(graph, node, each[0])
    if calls(node, aten.expand) and not all(_reads_codes(user) for user in node.users):
        return None  # more would be dequantized than before
    return moved(graph, node, each[0])


def _reads_codes(user: fx.Node) -> bool:
    return matched(user) is not None or quantize_of(user) is not None or calls(user, *MOVES)
