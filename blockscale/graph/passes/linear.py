# SPDX-License-Identifier: BSD-3-Clause
"""Products with a coded matrix become linear layers, which have kernels.

    addmm(b, x, t(dq(w)))  ->  linear(x, dq(w), b)

So GPT-2's Conv1D does, and linear layers that were decomposed.
"""

from typing import Any

from torch import fx

from blockscale.graph.constants import is_constant
from blockscale.graph.nodes import (
    arguments,
    aten,
    call,
    calls,
    dequantize_of,
    each_call,
    replace,
    shape,
)
from blockscale.graph.passes.channels_last import permutation


def run(graph: fx.GraphModule) -> int:
    """Write `linear` for each addmm and mm with a transposed weight in codes. Equal but for the
    order of float sums."""
    count = 0
    for node in each_call(graph, aten.addmm, aten.mm):
        own = arguments(node)
        weight = _transpose_of(own["mat2"])
        x, bias = (own["mat1"], own["self"]) if "mat1" in own else (own["self"], None)
        plain = own.get("beta", 1) == 1 and own.get("alpha", 1) == 1
        if weight is None or not plain or (bias is not None and len(shape(bias) or ()) != 1):
            continue
        if bias is not None and shape(bias) != shape(weight)[:1]:  # type: ignore[index]
            continue  # one number for all outputs
        replace(node, call(graph, aten.linear.default, (x, weight, bias), like=node))
        count += 1
    return count


def _transpose_of(node: Any) -> fx.Node | None:
    """The dequantized constant that the node transposes; None if it is something else."""
    flips = False
    while permutation(node) is not None or calls(node, aten.contiguous, aten.clone):
        flips ^= permutation(node) == [1, 0]
        node = node.args[0]
    result = dequantize_of(node)
    constant = result is not None and is_constant(result.operand.codes)
    return node if flips and constant else None
