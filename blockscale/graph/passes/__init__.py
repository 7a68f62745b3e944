# SPDX-License-Identifier: BSD-3-Clause
"""Passes: what changes a graph into one that computes the same, one a file.

A pass is a module with `run(graph) -> number of changes`. Those of FLOAT work on float graphs,
before they are quantized; those of FUSE on converted ones.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import fx

from blockscale.graph.constants import drop_unused
from blockscale.graph.passes import (
    absorb,
    cancel,
    channels_last,
    clean,
    constants,
    duplicates,
    fold_batch_norm,
    fold_mul,
    fuse,
    fuse_activation,
    fuse_conv,
    fuse_norm,
    linear,
    merge_products,
    monotone,
    moving,
    spelling,
)

_ROUNDS = 50  # more than the longest chain of changes that let one another happen


class Pass(Protocol):
    """A module of this folder."""

    __name__: str

    def run(self, graph: fx.GraphModule) -> int:
        """Change the graph; give the number of changes."""


FLOAT: Sequence[Pass] = (spelling, clean, fold_batch_norm)
FUSE: Sequence[Pass] = (
    *(
        spelling,
        clean,
        constants,
        linear,
        fold_mul,
        fuse_conv,
        channels_last,
        moving,
        duplicates,
        cancel,
        monotone,
    ),
    *(merge_products, fuse_norm, fuse, fuse_activation, absorb),
)


def apply(graph: fx.GraphModule, passes: Sequence[Pass]) -> dict[str, int]:
    """Run the passes in order, again and again until none changes anything. In place.

    Returns {name of a pass: its changes}. After each that changed something, dead nodes are gone
    and the graph is checked. Raises RuntimeError if they do not come to an end, a bug of ours.
    """
    changes = {_name(each): 0 for each in passes}
    for _ in range(_ROUNDS):
        before = sum(changes.values())
        for each in passes:
            size = len(graph.graph.nodes)
            count = each.run(graph)
            changes[_name(each)] += count
            if count or len(graph.graph.nodes) != size:  # also what it tried and left
                graph.graph.eliminate_dead_code()
                graph.graph.lint()
        drop_unused(graph)
        if sum(changes.values()) == before:
            tidy(graph)
            return changes
    raise RuntimeError(f"the passes still change the graph after {_ROUNDS} rounds: {changes}")


def tidy(graph: fx.GraphModule) -> None:
    """Drop dead nodes and unread constants, check the graph, and make its code anew."""
    graph.graph.eliminate_dead_code()
    drop_unused(graph)
    graph.graph.lint()
    graph.recompile()


def _name(each: Pass) -> str:
    return each.__name__.rpartition(".")[2]
