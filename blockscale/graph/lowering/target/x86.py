# SPDX-License-Identifier: BSD-3-Clause
"""oneDNN's products of 8-bit integers, as torch has them; the rest as on `cpu`.

Linear layers whose inputs have 8 bits under one scale and whose weights are int8 with a scale a
row, whatever was measured: on processors with AMX they are the fastest there is.
"""

from dataclasses import replace

from torch import fx

from blockscale.graph.lowering import onednn, residual
from blockscale.graph.lowering import residual as attention
from blockscale.graph.lowering.kernels import kernel_way, misses
from blockscale.graph.lowering.products.product import Quantized, parts_of, refusals, rewrite
from blockscale.graph.lowering.way import Way, of_ours, way
from blockscale.kernels.registry import unavailable as _unavailable


def unavailable() -> str | None:
    """Why oneDNN's products or our kernels do not run here, or None."""
    return onednn.unavailable() or _unavailable("cpu")


def supports(node: fx.Node) -> str | None:
    """Why neither oneDNN nor a kernel of ours runs the node, or None."""
    if of_ours(node) is None:
        return None
    parts = parts_of(node)
    if parts is not None and refusals(parts)["onednn"] is None:
        return None
    return misses(node, "cpu")


def run(graph: fx.GraphModule) -> list[Way]:
    """Linear layers become oneDNN's where it takes them; the rest stays on our kernels."""
    attention.lower_attention(graph, "cpu")
    residual.lower_residual_norms(graph, "cpu")
    ways: list[Way] = []
    quantized: Quantized = {}
    for node in [each for each in graph.graph.nodes if of_ours(each) is not None]:
        parts = parts_of(node)
        reason = refusals(parts)["onednn"] if parts is not None else ""
        if parts is not None and reason is None:
            ways.append(way(node, "onednn"))
            rewrite(graph, parts, "onednn", quantized)
            continue
        own = kernel_way(node, "cpu")
        ways.append(replace(own, why="; ".join(filter(None, [own.why, reason]))))
    graph.graph.eliminate_dead_code()
    return ways
