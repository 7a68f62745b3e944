# SPDX-License-Identifier: BSD-3-Clause
"""Integers and shifts alone (docs/integers.md)."""

from torch import fx

from blockscale.graph import passes
from blockscale.graph.expand import expand
from blockscale.graph.lowering.integers.audit import SUMS, check
from blockscale.graph.lowering.integers.moves import MOVES
from blockscale.graph.lowering.integers.walk import translate
from blockscale.graph.lowering.way import Way, layer_name
from blockscale.graph.nodes import calls, describe
from blockscale.graph.pickled import note, state
from blockscale.ops.integer import INTEGER_OPS

LONE = "1.6 to 2.4"  # of torch's float32 layer with one thread, docs/performance.md
_IN, _OUT = (INTEGER_OPS[f"integer_{door}"].overload for door in ("quantize", "dequantize"))


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
    builder = translate(graph)
    layers = [layer_name(like) for like, *_ in builder.nodes]  # before those nodes go
    passes.tidy(graph)
    check(graph)
    graph.meta[SUMS] = tuple(builder.sums)
    for each in builder.sums:
        note(graph, each.name, each.kind, f"sums reach {each.largest}, {each.accumulator}")
    return [
        Way(like.name, describe(like), layer, f"integer_{op}", "integers", _doors(node, op))
        for (like, node, op), layer in zip(builder.nodes, layers, strict=True)
        if not node._erased
    ]


def _doors(node: fx.Node, op: str) -> str:
    """What a convolution costs that stands alone between floats; "" for other nodes."""
    if op != "conv":
        return ""
    source = node.all_input_nodes[0]
    while calls(source, *MOVES):
        source = source.all_input_nodes[0]
    if source.target != _IN or not _leads_out(node):
        return ""
    return (
        f"{LONE} of float32's time, half of it the doors': floats become codes, channels last, and "
        "codes floats again for this one layer: quantize its neighbours, or keep it in float"
    )


def _leads_out(node: fx.Node) -> bool:
    """Whether all that reads a value, behind moves, makes floats of it."""
    return all(
        user.target == _OUT or (calls(user, *MOVES) and _leads_out(user)) for user in node.users
    )
