# SPDX-License-Identifier: BSD-3-Clause
"""The ledger of a graph: what its steps said, or what its nodes show."""

import operator
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from blockscale.core.ledger import Entry, Ledger
from blockscale.graph.nodes import describe
from blockscale.graph.pickled import State, state
from blockscale.graph.program import import_graph

_PARTS = ("scale", "zero_point", "outer")


def ledger(graph: fx.GraphModule | ExportedProgram) -> Ledger:
    """What became of every layer, parameter and op of a graph of ours, or of a program.

    Of a program or graph module that comes from elsewhere it says what the nodes show: which
    weights are codes and in which format, and which float parameters there are.
    Raises TypeError for what is no graph.
    """
    if isinstance(graph, fx.GraphModule) and isinstance(graph.meta.get("blockscale"), State):
        return state(graph).ledger
    return of_nodes(import_graph(graph))


def of_nodes(graph: fx.GraphModule) -> Ledger:
    """An entry for each tensor of codes that a node reads, and for each float parameter."""
    entries: dict[str, Entry] = {}
    for node in graph.graph.nodes:
        if node.op == "call_function" and str(node.target).startswith("blockscale."):
            for name, entry in _codes(graph, node):
                entries.setdefault(name, entry)
    codes, beside = set(entries), _scales(graph)
    for node in graph.graph.find_nodes(op="get_attr"):
        name, tensor = str(node.target), _tensor(graph, node)
        layer = name.rpartition(".")[0].removesuffix(".weight")
        if tensor is None or not tensor.is_floating_point() or {name, layer} & codes:
            continue
        if name in beside:
            continue
        if tensor.ndim < 2:
            continue
        entries.setdefault(
            name,
            Entry(name, "parameter", "kept", reason="float in the program", elements=tensor.numel(),
                  bytes_before=tensor.nbytes, bytes_after=tensor.nbytes),
        )  # fmt: skip
    return Ledger(list(entries.values()))


def _scales(graph: fx.GraphModule) -> set[str]:
    """The names of what stands beside codes, of activations too: scales and zero points."""
    names = set()
    for node in graph.graph.nodes:
        if node.op != "call_function" or not str(node.target).startswith("blockscale."):
            continue
        schema: Any = node.target._schema
        arguments = (
            dict(zip([a.name for a in schema.arguments], node.args, strict=False)) | node.kwargs
        )
        for key, part in arguments.items():
            while key.endswith(_PARTS) and isinstance(part, fx.Node) and part.op != "get_attr":
                inputs = part.all_input_nodes  # what made it of another shape
                part = inputs[0] if len(inputs) == 1 else None  # noqa: PLW2901
            if key.endswith(_PARTS) and isinstance(part, fx.Node):
                names.add(str(part.target))
    return names


def _codes(graph: fx.GraphModule, node: fx.Node) -> list[tuple[str, Entry]]:
    """The weights that a node of ours reads as codes, by their layers' names."""
    schema: Any = node.target._schema  # type: ignore[union-attr]
    arguments = dict(zip([a.name for a in schema.arguments], node.args, strict=False)) | node.kwargs
    results = []
    for key, fmt in arguments.items():
        if not key.endswith("fmt") or not fmt:
            continue
        prefix = key.removesuffix("fmt").removesuffix("_")
        at = arguments.get(prefix or "weight", arguments.get("packed"))
        codes = _tensor(graph, at) if isinstance(at, fx.Node) else None
        if codes is None or not isinstance(at, fx.Node):
            continue
        layer = str(at.target).removesuffix(".codes").removesuffix(".weight")
        parts = [v for k, v in arguments.items() if k in _beside(prefix) and isinstance(v, fx.Node)]
        size = codes.nbytes + sum(t.nbytes for p in parts if (t := _tensor(graph, p)) is not None)
        entry = Entry(layer, describe(node).split(" ")[0], "quantized", weight=str(fmt),
                      bytes_after=size, details="as in the program")  # fmt: skip
        results.append((layer, entry))
    return results


def _beside(prefix: str) -> set[str]:
    before = f"{prefix}_" if prefix and prefix not in ("weight", "packed") else ""
    return {f"{before}{part}" for part in _PARTS}


def _tensor(graph: fx.GraphModule, node: fx.Node) -> Tensor | None:
    if node.op != "get_attr":
        return None
    value: Any = operator.attrgetter(str(node.target))(graph)
    return value if isinstance(value, torch.Tensor) else None
