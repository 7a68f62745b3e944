# SPDX-License-Identifier: BSD-3-Clause
"""torch's own ops alone, for torch.compile and AOTInductor: Inductor writes C++ of them.

The references of our ops stand in the graph, so that results have the reference's bits as far as
the model's own float ops have theirs under Inductor: its gelu, softmax and layer norm differ in the
last bits.
"""

from torch import fx

from blockscale.graph.lowering.decompose import Decomposer
from blockscale.graph.lowering.kernels import pinned
from blockscale.graph.lowering.way import Way, of_ours, way


def unavailable() -> str | None:
    """None: the graph runs wherever torch does; compiling it needs what torch.compile needs."""
    return None


def supports(node: fx.Node) -> str | None:
    """The reason why the node's reference cannot be traced, or None."""
    if of_ours(node) is None or node.graph.owning_module is None:
        return None
    return Decomposer(node.graph.owning_module).reason(node)


def run(graph: fx.GraphModule) -> list[Way]:
    """Every op of ours becomes the torch ops of its reference."""
    decomposer, ways = Decomposer(graph), []
    for node in [each for each in graph.graph.nodes if of_ours(each) is not None]:
        reason = decomposer.reason(node)
        if reason is None:
            ways.append(way(node, "torch's ops"))
            decomposer.replace(node)
        else:
            ways.append(way(node, "reference", reason, on_reference=True))
            node.target = pinned(node.target)
    graph.graph.eliminate_dead_code()
    return ways
