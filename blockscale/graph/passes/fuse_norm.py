# SPDX-License-Identifier: BSD-3-Clause
"""The sum that ends a residual branch and its layer norm become one op.

layer_norm(a + b) -> q   ->   fused_add_layer_norm(a..., b..., y...)
"""

from dataclasses import replace

from torch import fx

from blockscale.graph.nodes import dequantize_of
from blockscale.graph.passes.fuse import fuse
from blockscale.graph.passes.fused import dtype_of, match_fused, only_user, quantized_by
from blockscale.ops.fused import FUSED, Match


def run(graph: fx.GraphModule) -> int:
    """Fuse a layer norm with the sum before it, where nobody else reads the sum and codes go in or
    come out. Equal to the bit."""
    count = 0
    for node in list(graph.graph.nodes):
        result = None if node._erased else match_fused(node)
        if result is None or result.fused.name != "layer_norm":
            continue
        whole = _with_sum(node, result)
        if whole is not None and (_has_codes(whole) or quantized_by(node)):
            total = result.operands[0]
            fusions = fuse(graph, node, whole)
            if fusions and not total.users:
                graph.graph.erase_node(total)
            count += fusions
    return count


def _with_sum(node: fx.Node, match: Match) -> Match | None:
    """The layer norm together with the sum that it reads."""
    total = match.operands[0]
    inner = match_fused(total)
    if inner is None or inner.fused.name != "add" or inner.settings["alpha"] != 1:
        return None
    if only_user(total) is None or dtype_of(total) != dtype_of(node):
        return None
    return replace(inner, fused=FUSED["add_layer_norm"], settings=match.settings)


def _has_codes(match: Match) -> bool:
    return any(dequantize_of(each) is not None for each in match.operands)
