# SPDX-License-Identifier: BSD-3-Clause
"""What became of the nodes of a lowered graph."""

from dataclasses import dataclass
from typing import Any

from torch import fx

from blockscale.graph.nodes import describe, op_name, scope
from blockscale.graph.passes.merge_products import layer_of
from blockscale.ops.fused import FUSED
from blockscale.ops.fused.plan import RESIDUAL
from blockscale.ops.op import OPS, Op

_KEY = "blockscale ways"


@dataclass(frozen=True)
class Way:
    """How a target runs one node.

    node: its name in the graph that was lowered
    summary: the node as errors name it, with the line of the model's source
    scope: the dotted name of the layer that it came from; may be empty
    op: what it computes
    way: what runs it, in a word or two, e.g. "kernel"
    why: the reason for that way
    on_reference: whether the target cannot run it, so that the reference does
    """

    node: str
    summary: str
    scope: str
    op: str
    way: str
    why: str
    on_reference: bool = False

    @property
    def text(self) -> str:
        """Way and reason in one line."""
        return f"{self.op}: {self.way}" + (f" ({self.why})" if self.why else "")


def way(node: fx.Node, name: str, why: str = "", *, on_reference: bool = False) -> Way:
    """What became of a node that still stands in the graph."""
    return Way(node.name, describe(node), layer_name(node), op_name(node), name, why, on_reference)


def layer_name(node: fx.Node) -> str:
    """The layer whose weight a node reads, also where the node computes an activation as well; for
    other nodes the module that they are in."""
    codes = [str(each.target) for each in node.all_input_nodes if each.op == "get_attr"]
    return next((layer_of(each) for each in codes if each.endswith(".codes")), scope(node))


def ways(graph: fx.GraphModule) -> tuple[Way, ...]:
    """How each op of ours runs in a lowered graph, in its order; () before it is lowered."""
    each_way: tuple[Way, ...] = graph.meta.get(_KEY, ())
    return each_way


def set_ways(graph: fx.GraphModule, ways: list[Way]) -> None:
    """Keep them with the graph."""
    graph.meta[_KEY] = tuple(ways)


def of_ours(node: fx.Node) -> Op | None:
    """The op of ours that the node calls, or None."""
    return by_overload().get(node.target) if node.op == "call_function" else None


def by_overload() -> dict[Any, Op]:
    """{torch op: the op of ours}, fused ones included."""
    if len(_known) != len(OPS) + len(FUSED) + len(RESIDUAL):
        fused = (each.op for each in FUSED.values())
        _known.update({op.overload: op for op in (*OPS.values(), *fused, *RESIDUAL)})
    return _known


_known: dict[Any, Op] = {}
