# SPDX-License-Identifier: BSD-3-Clause
"""fuse: ops that dequantize, compute and quantize become one op each."""

from collections.abc import Iterator
from dataclasses import replace
from operator import getitem

from torch import fx

from blockscale.graph import passes
from blockscale.graph.adoption.program import as_ours
from blockscale.graph.constants import is_constant
from blockscale.graph.expand import expand
from blockscale.graph.nodes import calls, op_name, quantize_of
from blockscale.graph.passes.fused import read
from blockscale.graph.passes.merge_products import MERGED, layer_of
from blockscale.graph.passes.moved_blocks import PIECES
from blockscale.graph.passes.moving import MOVES
from blockscale.graph.pickled import state
from blockscale.graph.program import Program

_FLOAT = "its result stays in float for"


def fuse(converted: Program) -> fx.GraphModule:
    """A converted graph -> one of fused ops, with the same bits under `bs.use("reference")`.

    converted: what `bs.graph.convert` gave; or a program of torch.export, or another graph module,
        of a model that was quantized or trained before (bs.quantize_, bs.calibrate, bs.convert,
        torchao's convert_pt2e). It stays as it is.

    What one op gives and another reads stays in codes where a format is given for it; the ledger
    names the layers whose results go on in float, and the ops that read them.
    Raises TypeError for what is no graph, ValueError for a prepared graph.
    """
    graph = as_ours(converted, first=passes.FLOAT)
    if state(graph).stage == "prepared":
        raise ValueError("a prepared graph cannot be fused: call bs.graph.convert first")
    expand(graph)
    changes = passes.apply(graph, passes.FUSE)
    info = state(graph)
    info.stage = "fused"
    info.changes = {**info.changes, **{name: n for name, n in changes.items() if n}}
    _tell_floats(graph)
    return graph


def _tell_floats(graph: fx.GraphModule) -> None:
    """Say in the ledger which layers' results go on in float, and to which ops."""
    merged: dict[str, list[str]] = graph.meta.pop(MERGED, {})
    floats: dict[str, dict[str, None]] = {}
    for node in graph.graph.nodes:
        result = read(node)
        if result is None or result.y.fmt or result.fused.indices:
            continue
        readers = [op_name(each).removeprefix("fused_") for each in _readers(node)]
        for operand in result.operands if readers else ():
            if operand.fmt and is_constant(operand.data):
                codes = str(operand.data.target)  # type: ignore[attr-defined]  # a node
                for layer in merged.get(codes, [layer_of(codes)]):
                    floats.setdefault(layer, {}).update(dict.fromkeys(readers))
    entries = state(graph).ledger.entries
    for i, entry in enumerate(entries):
        if entry.name in floats and _FLOAT not in entry.details:
            text = f"{_FLOAT} {', '.join(floats[entry.name])}, because it has no output format"
            entries[i] = replace(entry, details="; ".join(filter(None, [entry.details, text])))


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """The ops that compute with a tensor, or a part of it: not what returns or quantizes it."""
    for user in node.users:
        if user.target is getitem or calls(user, *MOVES, *PIECES):
            yield from _readers(user)
        elif user.op != "output" and quantize_of(user) is None:
            yield user
