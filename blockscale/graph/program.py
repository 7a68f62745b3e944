# SPDX-License-Identifier: BSD-3-Clause
"""Programs of torch.export as graphs that can be changed, and back."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import Dim, ExportedProgram

from blockscale.core.torch_private import pytree
from blockscale.core.untrusted import kind_of
from blockscale.graph.nodes import described
from blockscale.graph.pickled import Graph, State, set_state, state

Program = ExportedProgram | fx.GraphModule


def imported(program: Program) -> fx.GraphModule:
    """A program as a graph module of its own, which shares the program's tensors.

    program: of torch.export; or a graph of ours, which is copied; or another graph module, such as
        torchao's convert_pt2e gives.
    Raises TypeError for anything else.
    """
    if isinstance(program, ExportedProgram):
        source = program.module(check_guards=False)
        assert isinstance(source, fx.GraphModule)
        made = same(source)
        example, ranges = program.example_inputs, program.range_constraints
        names = tuple(program.state_dict)
        set_state(made, State("imported", example=example, ranges=ranges, names=names))
        return made
    if not isinstance(program, fx.GraphModule):
        raise TypeError(
            f"expected a program, found {kind_of(program)}: export the model first, "
            f"program = torch.export.export(model.eval(), example)"
        )
    made = same(program)
    if isinstance(program.meta.get("blockscale"), State):
        set_state(made, copied(state(program)))
    else:
        set_state(made, State("imported"))
    return made


def check_evaluation(program: Program) -> None:
    """Raise ValueError for a program or graph of ops that was exported in training mode."""
    for node in program.graph.nodes:
        name = str(node.target)
        trains = "train" if "dropout" in name else "training"
        schema: Any = getattr(node.target, "_schema", None)
        if node.op != "call_function" or schema is None or not name.startswith("aten."):
            continue
        named = [argument.name for argument in schema.arguments]
        given = dict(zip(named, node.args, strict=False)) | dict(node.kwargs)
        if given.get(trains) is True and ("dropout" in name or "norm" in name):
            raise ValueError(
                f"{described(node)} is in training mode: export the model after model.eval(), or "
                f"call torchao.quantization.pt2e.move_exported_model_to_eval(graph), which changes "
                f"such nodes"
            )


def copied(known: State) -> State:
    """A state that can be changed without changing `known`."""
    ledger = copy.copy(known.ledger)
    ledger.entries = list(ledger.entries)
    return replace(known, ledger=ledger)


def same(source: fx.GraphModule) -> fx.GraphModule:
    """The same graph over the same tensors and modules, in containers of its own."""
    nodes = fx.Graph(tracer_cls=source.graph._tracer_cls)
    memo: dict[fx.Node, fx.Node] = {}
    output = nodes.graph_copy(source.graph, memo)
    last = next(iter(source.graph.find_nodes(op="output")))
    nodes.output(output).meta = dict(last.meta)
    for old, new in memo.items():
        new.meta = dict(old.meta)
    # shared, as nothing changes it: deepcopy warns of a class that torch puts into it
    nodes._codegen = source.graph._codegen
    made = Graph(source, nodes)
    made.train(source.training)
    return made


def exported(graph: fx.GraphModule) -> ExportedProgram:
    """A graph of ours as a program of torch.export, its sizes as free as they were.

    Raises ValueError for a graph that is not finished (prepared), or that has no example and whose
    inputs say nothing of their sizes.
    """
    known = state(graph)
    if known.stage == "prepared":
        raise ValueError(
            "a prepared graph still holds float layers: call bs.graph.convert before exporting"
        )
    return traced(graph)


def traced(graph: fx.GraphModule) -> ExportedProgram:
    """torch.export's program of a graph, whatever modules it calls: in evaluation mode."""
    args, kwargs = example_of(graph)
    with torch.no_grad():
        return torch.export.export(graph, args, kwargs, dynamic_shapes=_sizes(graph))


def example_of(graph: fx.GraphModule) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments that the graph can be called with, of the sizes it was exported with."""
    known = state(graph)
    if known.example is not None:
        return known.example
    leaves = []
    for node in graph.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if value is None:
            raise ValueError(
                f"the graph has no example of its inputs, and the shape of {node.name!r} is "
                "not known: start from torch.export.export(model, example)"
            )
        leaves.append(_zeros(value) if isinstance(value, Tensor) else value)
    spec = _in_spec(graph)
    if spec is None:
        return tuple(leaves), {}
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    return args, kwargs


def _zeros(value: Tensor) -> Tensor:
    sizes = [_hint(size) for size in value.shape]
    return torch.zeros(sizes, dtype=value.dtype, device=value.device)


def _hint(size: Any) -> int:
    """The size that a symbol had in the example."""
    return int(size if isinstance(size, int) else size.node.hint)


def _in_spec(graph: fx.GraphModule) -> Any:
    """How torch.export folded (args, kwargs) into the graph's inputs; None for a plain graph."""
    info = getattr(graph.graph._codegen, "pytree_info", None)
    return None if info is None else info.in_spec


def _sizes(graph: fx.GraphModule) -> Any:
    """torch.export's dynamic_shapes: every size that is a symbol in the graph stays one."""
    ranges, dims = state(graph).ranges, dict[Any, Any]()
    leaves: list[Any] = []
    for node in graph.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        free: dict[int, Any] = {}
        for i, size in enumerate(value.shape if isinstance(value, Tensor) else ()):
            if not isinstance(size, int):
                free[i] = _dim(size, ranges, dims)
        leaves.append(free or None)
    if not any(leaves):
        return None
    spec = _in_spec(graph)
    by_args, by_kwargs = (
        (tuple(leaves), {}) if spec is None else pytree.tree_unflatten(leaves, spec)
    )
    names = _names(graph)
    return {**dict(zip(names, by_args, strict=False)), **by_kwargs} if len(names) else by_args


def _names(graph: fx.GraphModule) -> list[str]:
    info = getattr(graph.graph._codegen, "pytree_info", None)
    if info is None:
        return [node.name for node in graph.graph.find_nodes(op="placeholder")]
    return [name for name in info.orig_args if name != "self"]


def _dim(size: Any, ranges: Mapping[Any, Any], dims: dict[Any, Any]) -> Any:
    """A named size for a symbol, the same for each of its places; free where it is a term."""
    symbol = size.node.expr
    if not symbol.is_Symbol:
        return Dim.AUTO
    if symbol not in dims:
        found = ranges.get(symbol)
        low = None if found is None else _bound(found.lower)
        high = None if found is None else _bound(found.upper)
        dims[symbol] = Dim(str(symbol), min=low, max=high)
    return dims[symbol]


def _bound(number: Any) -> int | None:
    try:
        found = int(number)
    except (TypeError, OverflowError, AttributeError):
        return None  # no bound: infinity
    return found if 1 < found < 2**62 else None
