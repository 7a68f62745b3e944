# SPDX-License-Identifier: BSD-3-Clause
"""Integers and shifts alone (docs/integers.md)."""

from torch import fx

from blockscale.graph import passes
from blockscale.graph.expand import expand
from blockscale.graph.lowering.integers.audit import SUMS, check
from blockscale.graph.lowering.integers.walk import translate
from blockscale.graph.lowering.way import Way
from blockscale.graph.nodes import described, scope
from blockscale.graph.pickled import note, state


def unavailable() -> str | None:
    """None: it runs everywhere."""
    return None


def run(graph: fx.GraphModule) -> list[Way]:
    """Write integer ops in the place of all others.

    Raises NotIntegerError, which names the first node that integers cannot take over.
    """
    if state(graph).stage != "fused":
        expand(graph)  # a program of quantized layers has their ops
        passes.apply(graph, passes.FUSE)
    built = translate(graph)
    passes.tidy(graph)
    check(graph)
    graph.meta[SUMS] = tuple(built.sums)
    for each in built.sums:
        note(graph, each.name, each.kind, f"sums reach {each.largest}, {each.accumulator}")
    return [
        Way(like.name, described(like), scope(like), f"integer_{op}", "integers", "")
        for like, node, op in built.written
        if not node._erased
    ]
