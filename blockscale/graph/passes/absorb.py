# SPDX-License-Identifier: BSD-3-Clause
"""A quantize moves up to what makes its floats.

fused_op -> q                  ->  fused_op(y...)
op -> view, permute -> q       ->  op -> q -> view, permute      (one scale for all)
"""

from operator import getitem
from typing import Any

from torch import fx

from blockscale.core.operand import Operand, Quantizer
from blockscale.core.parse import parse
from blockscale.graph.nodes import aten, call, calls, ours, quantize_of, shape
from blockscale.graph.passes.fused import match_fused, only_user, taken_out
from blockscale.graph.passes.moved_blocks import of_rank
from blockscale.graph.passes.moving import BEFORE, move_codes


def run(graph: fx.GraphModule) -> int:
    """Move each quantize by one scale before the ops that only move, and each quantize into the
    fused op before it, where nobody else reads the floats. Equal to the bit."""
    count = 0
    for node in reversed(list(graph.graph.nodes)):
        result = None if node._erased else quantize_of(node)
        if result is not None and isinstance(result.x, fx.Node):
            count += _into(graph, node, result.x, result.by) or _up(
                graph, node, result.x, result.by
            )
    return count


def _into(graph: fx.GraphModule, node: fx.Node, x: fx.Node, by: Quantizer) -> bool:
    """Let the fused op that gives x give codes."""
    result = taken_out(x)
    if result is None or only_user(x) is not node or result.fused.indices:
        return False
    old: Any = x.args[0]
    result.y = by
    new = result.write(graph, node)
    node.replace_all_uses_with(
        new if by.scale is None else call(graph, getitem, (new, 0), like=node)
    )
    for each in (node, x, old):
        graph.graph.erase_node(each)
    return True


def _up(graph: fx.GraphModule, node: fx.Node, x: fx.Node, by: Quantizer) -> bool:
    """Quantize what a moving op moves, and move the codes."""
    if not calls(x, *BEFORE) or only_user(x) is not node or not calls(node, ours.quantize):
        return False
    source, fmt = x.args[0], parse(by.fmt)
    sizes = shape(source)
    if not sizes or fmt.block.name != "tensor" or fmt.rounding == "stochastic" or by.more:
        return False  # chance goes by the place of an element
    if by.outer is not None or not ends_in_op(source):
        return False
    row = sizes[-1]
    if not isinstance(row, int):
        row = call(graph, aten.sym_size.int, (source, -1), like=x)
    operand = Operand(x, by.scale, by.zero_point, None, by.fmt, row)  # type: ignore[arg-type]
    operand = of_rank(graph, operand, len(sizes), x)
    args: Any = (source, operand.scale, operand.zero_point, None, by.fmt)
    codes: Any = call(graph, ours.quantize.default, args, like=x)
    after = move_codes(graph, x, operand._replace(codes=codes))
    if after is None:
        return False
    node.replace_all_uses_with(after.codes)  # type: ignore[arg-type]
    graph.graph.erase_node(node)
    graph.graph.erase_node(x)
    return True


def ends_in_op(source: Any) -> bool:
    """Whether an op that can give codes makes the floats, for one reader."""
    while calls(source, *BEFORE) and len(source.users) == 1:
        source = source.args[0]
    if not isinstance(source, fx.Node) or len(source.users) != 1:
        return False
    return taken_out(source) is not None or match_fused(source) is not None
