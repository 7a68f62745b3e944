# SPDX-License-Identifier: BSD-3-Clause
"""Every op on the reference, whatever `bs.use` says: the bits that all else is measured by."""

from torch import fx

from blockscale.graph.lowering.kernels import pinned
from blockscale.graph.lowering.way import Way, of_ours, way


def unavailable() -> str | None:
    """None: it runs everywhere."""
    return None


def supports(node: fx.Node) -> str | None:
    """None: it runs every node."""
    del node
    return None


def run(graph: fx.GraphModule) -> list[Way]:
    """Every op of ours becomes the one that keeps to the reference."""
    ways = []
    for node in graph.graph.nodes:
        if of_ours(node) is not None:
            ways.append(way(node, "reference"))
            node.target = pinned(node.target)
    return ways
