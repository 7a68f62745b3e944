# SPDX-License-Identifier: BSD-3-Clause
"""Integer graphs with marks in the place of their ops, as `take.py` has it for converted ones."""

from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from blockscale.export.to_onnx.integer import Taken, is_written
from blockscale.export.to_onnx.pieces import Piece, Step, placed_as
from blockscale.graph.constants import get, is_constant
from blockscale.graph.lowering.integers.audit import name_of
from blockscale.graph.nodes import arguments, aten, call, calls, described, scope, shape, value
from blockscale.ops.integer import INTEGER_OPS


def is_integers(graph: fx.GraphModule) -> bool:
    """Whether a graph is one that bs.graph.lower(graph, "integer") made."""
    return any(name_of(node) for node in graph.graph.nodes)


def take_integer_ops(graph: fx.GraphModule) -> list[Piece]:
    """Put a mark into an integer graph for each op, in place; what each stands for.

    Raises ValueError that names the first op that ONNX has no integer operators for.
    """
    pieces: list[Piece] = []
    for node in list(graph.graph.nodes):
        op, given = _call(node)
        if op is None:
            continue
        if not is_written(op):
            raise ValueError(
                f"{described(node)}: ONNX has no integer operators for {name_of(node)}: leave it "
                f"in float (bs.graph.convert), or write a C file (bs.export.c)"
            )
        computed: list[fx.Node] = []
        settings = {name: _read(graph, each, computed) for name, each in given.items()}
        pieces.append(Step(scope(node) or node.name, op, settings))
        args = (len(pieces) - 1, node, *computed)
        with_mark = call(graph, placed_as, args, like=node.next)
        node.replace_all_uses_with(
            with_mark, delete_user_cb=lambda user, m=with_mark: user is not m
        )
    return pieces


def _call(node: fx.Node) -> tuple[str | None, dict[str, Any]]:
    """The integer op that a node calls, and its arguments; None for what torch translates."""
    name = name_of(node)
    if name:
        names = INTEGER_OPS[name].signature.names
        return name.removeprefix("integer_"), dict(zip(names, node.args, strict=True))
    if not calls(node, aten.pad, aten.constant_pad_nd) or not _integers(value(node)):
        return None, {}
    given = arguments(node)
    if given.get("mode", "constant") != "constant":
        return None, {}
    return "pad", {"x": given.get("input", given.get("self")), "pad": given["pad"],
                   "value": given.get("value") or 0}  # fmt: skip


def _integers(found: Any) -> bool:
    return isinstance(found, Tensor) and not found.is_floating_point()


def _read(graph: fx.GraphModule, argument: Any, computed: list[fx.Node]) -> Any:
    """An argument as the writers take it; what the graph computes is added to `computed`."""
    if not isinstance(argument, fx.Node):
        return argument
    if is_constant(argument):
        return get(graph, argument).detach().cpu()
    computed.append(argument)
    sizes = tuple(n if isinstance(n, int) else None for n in shape(argument) or ())
    return Taken("", value(argument).dtype, sizes)


def without_dead(program: ExportedProgram) -> ExportedProgram:
    """The same without the ops whose marks were made, and checks that keep them."""
    graph = program.graph_module.graph
    for node in list(graph.nodes):
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            graph.erase_node(node)
    graph.eliminate_dead_code()
    program.graph_module.recompile()
    return program
