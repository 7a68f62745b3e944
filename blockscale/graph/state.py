# SPDX-License-Identifier: BSD-3-Clause
"""What a graph of ours knows beside its nodes; it stays with the graph module through copies."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import fx

from blockscale.core.ledger import Entry, Ledger
from blockscale.core.recipe import Recipe

_KEY = "blockscale"


@dataclass
class State:
    """What a step leaves for the next one.

    stage: the step that made the graph: "imported", "prepared", "converted", "fused", "lowered"
    target: what a lowered graph is for; empty before
    ledger: what became of every layer, parameter and node so far
    changes: {pass: how often it changed the graph}
    recipe: what was asked for; None for programs that came quantized
    example: the arguments and keyword arguments that the program was exported with, if it has any
    names: of the program's parameters and buffers, in the model's order
    ranges: {symbol: the sizes it may have}, as torch.export keeps them
    """

    stage: str
    target: str = ""
    ledger: Ledger = field(default_factory=Ledger)
    changes: dict[str, int] = field(default_factory=dict)
    recipe: Recipe | None = None
    example: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    ranges: Mapping[Any, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ()


def state(graph: fx.GraphModule) -> State:
    """The graph's state. Raises ValueError for a graph module that no step of ours made."""
    found = graph.meta.get(_KEY) if isinstance(graph, fx.GraphModule) else None
    if not isinstance(found, State):
        raise ValueError(
            "expected a graph that bs.graph.prepare or a later step returned, found a "
            f"{type(graph).__name__}: start with bs.graph.prepare(torch.export.export(...), "
            "recipe)"
        )
    return found


def set_state(graph: fx.GraphModule, made: State) -> None:
    """Make `made` what the graph knows."""
    graph.meta[_KEY] = made


def note(graph: fx.GraphModule, name: str, kind: str, text: str) -> None:
    """Say something of a layer or node in the ledger: a note of its entry, or an entry "kept"."""
    ledger = state(graph).ledger
    for i, entry in enumerate(ledger.entries):
        if entry.name == name:
            if text not in entry.notes:
                ledger.entries[i] = replace(entry, notes=(*entry.notes, text))
            return
    ledger.entries.append(Entry(name, kind, "kept", reason=text))
