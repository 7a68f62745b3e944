# SPDX-License-Identifier: BSD-3-Clause
"""Attention of floats by our own kernel, which is faster than torch's."""

from torch import fx

from blockscale.core.operand import Value
from blockscale.graph.lowering.kernels import has_kernel
from blockscale.graph.passes.fused import Call, dtype_of, matched, result


def run(graph: fx.GraphModule, backend: str) -> int:
    """Write `fused_sdpa` in the place of each attention that a kernel of the backend runs.

    In place; sums are in another order, within the op's ulps. Returns how many there are.
    """
    count = 0
    for node in list(graph.graph.nodes):
        found = None if node._erased else matched(node)
        if found is None or found.fused.name != "sdpa":
            continue
        dtype = dtype_of(node)
        assert dtype is not None
        operands = [Value(each) for each in found.operands]  # type: ignore[arg-type]
        made = Call(found.fused, operands, found.settings, dtype).write(graph, node)
        if has_kernel(made, backend):
            node.replace_all_uses_with(result(graph, made, node))
            graph.graph.erase_node(node)
            count += 1
        else:
            graph.graph.erase_node(made)
    return count
