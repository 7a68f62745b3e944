# SPDX-License-Identifier: BSD-3-Clause
"""Our CPU kernels; linear layers of 8-bit integers by oneDNN where that is faster, as measured."""

from torch import fx

from blockscale.graph.lowering import lone, residual
from blockscale.graph.lowering import residual as attention
from blockscale.graph.lowering.kernels import kernel_way, misses
from blockscale.graph.lowering.products.choose import Times, choose
from blockscale.graph.lowering.products.product import (
    Product,
    Quantized,
    parts_of,
    product_of,
    refusals,
    rewrite,
)
from blockscale.graph.lowering.products.timing import time_ways
from blockscale.graph.lowering.way import Way, of_ours, way
from blockscale.kernels.registry import unavailable as _unavailable


def unavailable() -> str | None:
    """Why our CPU kernels do not run here, or None."""
    return _unavailable("cpu")


def supports(node: fx.Node) -> str | None:
    """Why no kernel of ours runs the node, or None."""
    return misses(node, "cpu") if of_ours(node) is not None else None


def run(graph: fx.GraphModule, *, measure: bool = False) -> list[Way]:
    """Choose a way for each node of ours. Only linear layers have several.

    measure: time the ways of each linear layer here and now, instead of looking them up
    """
    attention.lower_attention(graph, "cpu")
    residual.lower_residual_norms(graph, "cpu")
    lone.lower_lone_convolutions(graph)
    ways: list[Way] = []
    quantized: Quantized = {}
    times: dict[Product, Times] = {}
    for node in [each for each in graph.graph.nodes if of_ours(each) is not None]:
        parts = parts_of(node)
        if parts is None or misses(node, "cpu"):
            ways.append(kernel_way(node, "cpu"))
            continue
        why, product = refusals(parts), product_of(parts)
        if measure and product is not None and product not in times:
            times[product] = time_ways(
                product, [each for each, reason in why.items() if not reason]
            )
        choice = choose(product, why, times.get(product) if product is not None else None)
        ways.append(way(node, choice.way, choice.why))
        rewrite(graph, parts, choice.way, quantized)
    graph.graph.eliminate_dead_code()
    return ways
