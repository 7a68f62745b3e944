# SPDX-License-Identifier: BSD-3-Clause
"""Programs of torch.export as graphs that can be changed, and back."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram

from blockscale.core.torch_private import (
    FakeTensor,
    FakeTensorMode,
    detect_fake_mode,
    enable_python_dispatcher,
    exporting,
    pytree,
)
from blockscale.core.untrusted import kind_of
from blockscale.graph.nodes import SCOPE, describe, same_sizes, value
from blockscale.graph.pickled import Graph, State, set_state, state

Program = ExportedProgram | fx.GraphModule


def import_graph(program: Program) -> fx.GraphModule:
    """A program as a graph module of its own, which shares the program's tensors.

    program: of torch.export; or a graph of ours, which is copied; or another graph module, such as
        torchao's convert_pt2e gives.
    Raises TypeError for anything else.
    """
    if isinstance(program, ExportedProgram):
        source = program.module(check_guards=False)
        assert isinstance(source, fx.GraphModule)
        result = same(source)
        example, ranges = program.example_inputs, program.range_constraints
        names = tuple(program.state_dict)
        set_state(result, State("imported", example=example, ranges=ranges, names=names))
        return result
    if not isinstance(program, fx.GraphModule):
        raise TypeError(
            f"expected a program, found {kind_of(program)}: export the model first, "
            f"program = torch.export.export(model.eval(), example)"
        )
    result = same(program)
    if isinstance(program.meta.get("blockscale"), State):
        set_state(result, copy_state(state(program)))
    else:
        set_state(result, State("imported"))
    return result


def check_evaluation(program: Program) -> None:
    """Raise ValueError for a program or graph of ops that was exported in training mode."""
    for node in program.graph.nodes:
        name = str(node.target)
        trains = "train" if "dropout" in name else "training"
        schema: Any = getattr(node.target, "_schema", None)
        if node.op != "call_function" or schema is None or not name.startswith("aten."):
            continue
        by_name = [argument.name for argument in schema.arguments]
        arguments = dict(zip(by_name, node.args, strict=False)) | dict(node.kwargs)
        if arguments.get(trains) is True and ("dropout" in name or "norm" in name):
            raise ValueError(
                f"{describe(node)} is in training mode: export the model after model.eval(), or "
                f"call torchao.quantization.pt2e.move_exported_model_to_eval(graph), which changes "
                f"such nodes"
            )


def copy_state(state: State) -> State:
    """A state that can be changed without changing `state`."""
    ledger = copy.copy(state.ledger)
    ledger.entries = list(ledger.entries)
    return replace(state, ledger=ledger)


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
    graph = Graph(source, nodes)
    graph.train(source.training)
    return graph


def exported(graph: fx.GraphModule) -> ExportedProgram:
    """A graph of ours as a program of torch.export, its sizes as free as they were.

    Raises ValueError for a graph that is not finished (prepared), or that has no example and whose
    inputs say nothing of their sizes.
    """
    stage = state(graph)
    if stage.stage == "prepared":
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
    stage = state(graph)
    if stage.example is not None:
        return stage.example
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
        value = ranges.get(symbol)
        low = None if value is None else _bound(value.lower)
        high = None if value is None else _bound(value.upper)
        dims[symbol] = Dim(str(symbol), min=low, max=high)
    return dims[symbol]


def _bound(number: Any) -> int | None:
    try:
        result = int(number)
    except (TypeError, OverflowError, AttributeError):
        return None  # no bound: infinity
    return result if 1 < result < 2**62 else None


def written_out(model: fx.GraphModule) -> fx.GraphModule | None:
    """The graph with its layers as the ops that they call, each layer traced by itself; or None.

    An export of the whole gives the same graph and traces every op of it again, though only layers
    became others: here those alone are traced, on the fake tensors that the graph knows, with their
    symbolic sizes. The graph has containers of its own, over the tensors of `model`.

    model: its modules take one tensor and give one. It is None where a node has no fake tensor, a
        layer gives another dtype, shape or layout than the node that called it knows, or a trace
        asks something of symbolic sizes that is not known of all of them.
    """
    calls = list(model.graph.find_nodes(op="call_module"))
    values = [value(node) for node in model.graph.nodes]
    mode = detect_fake_mode([each for each in values if isinstance(each, FakeTensor)])
    if mode is None or not all(map(_is_plain_call, calls)) or not _only_tensors(model):
        return None
    with _same_guards(mode) as guards:
        bodies = {node: _body(model.get_submodule(str(node.target)), node, mode) for node in calls}
    if not guards() or not all(map(_fits, calls, bodies.values())):
        return None
    return _write(model, bodies, mode)


def _is_plain_call(node: fx.Node) -> bool:
    """Whether it takes one tensor of known size and gives one."""
    args = node.args
    one = len(args) == 1 and not node.kwargs and isinstance(args[0], fx.Node)
    return one and isinstance(value(args[0]), FakeTensor) and isinstance(value(node), FakeTensor)


def _only_tensors(model: fx.GraphModule) -> bool:
    """Whether the graph reads tensors alone, and no graphs of branches and loops."""
    nodes = model.graph.find_nodes(op="get_attr")
    return all(isinstance(_at(model, str(node.target)), Tensor) for node in nodes)


def _at(model: nn.Module, name: str) -> Any:
    """What lies under a dotted name; quantized layers give floats for their own `weight`."""
    path, _, last = name.rpartition(".")
    owner = model.get_submodule(path)
    for members in (owner._parameters, owner._buffers, owner._modules):
        if last in members:
            return members[last]
    return getattr(owner, last, None)


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    by_name = dict[str, Tensor](module.named_parameters(remove_duplicate=False))
    return by_name | dict(module.named_buffers(remove_duplicate=False))


def _body(module: nn.Module, node: fx.Node, mode: FakeTensorMode) -> fx.GraphModule:
    """The ops of a module for the node's input; placeholders are the input and the tensors."""
    from torch.fx.experimental.proxy_tensor import make_fx  # loads sympy

    by_name = _tensors(module)

    def run(x: Tensor, *tensors: Tensor) -> Any:
        arguments = dict(zip(by_name, tensors, strict=True))
        return torch.func.functional_call(module, arguments, (x,), tie_weights=False)

    fakes = [mode.from_tensor(tensor, static_shapes=True) for tensor in by_name.values()]
    with torch.no_grad(), enable_python_dispatcher(), exporting():
        result = make_fx(run, pre_dispatch=True)(value(node.args[0]), *fakes)
    result.graph.eliminate_dead_code()
    return result


def _fits(node: fx.Node, body: fx.GraphModule) -> bool:
    """Whether what reads the node finds in the body's result what it was traced with."""
    result = body.graph.output_node().args[0]
    if not isinstance(result, fx.Node) or body.graph.find_nodes(op="get_attr"):
        return False
    before, after = value(node), value(result)
    if not isinstance(after, FakeTensor):
        return False
    same = before.dtype == after.dtype and before.device == after.device
    strides = same_sizes(tuple(before.stride()), tuple(after.stride()))
    return same and same_sizes(tuple(before.shape), tuple(after.shape)) and strides


@contextmanager
def _same_guards(mode: FakeTensorMode) -> Iterator[Any]:
    """Gives what says whether nothing was decided of symbolic sizes since."""
    sizes: Any = mode.shape_env

    def guards() -> tuple[int, ...]:
        if sizes is None:
            return ()
        return len(sizes.guards), len(sizes.replacements), sizes.num_deferred_runtime_asserts

    before = guards()
    yield lambda: guards() == before


def _write(
    model: fx.GraphModule, bodies: dict[fx.Node, fx.GraphModule], mode: FakeTensorMode
) -> fx.GraphModule:
    """The graph with the bodies in the place of the calls."""
    writer = _Writer(model, mode)
    for node in model.graph.nodes:
        writer.write(node, bodies.get(node))
    graph = Graph(writer.root, writer.graph)
    graph.train(model.training)
    set_state(graph, state(model))
    return graph


class _Writer:
    """A graph that is copied node by node, and the tensors that it reads, in plain containers.

    As torch.export does, it reads them before all else, parameters first, and one that has several
    names under the last of them.
    """

    def __init__(self, model: fx.GraphModule, mode: FakeTensorMode):
        self._model = model
        self.root = nn.Module()
        self.graph = fx.Graph(tracer_cls=model.graph._tracer_cls)
        self.graph._codegen = model.graph._codegen  # as in `same`: nothing changes it
        self._copies: dict[fx.Node, fx.Node] = {}
        by_name = _tensors(model)
        last = {id(tensor): name for name, tensor in by_name.items()}
        self._reads = {
            id(t): self._read(n, t, mode) for n, t in by_name.items() if last[id(t)] == n
        }

    def _read(self, name: str, tensor: Tensor, mode: FakeTensorMode) -> fx.Node:
        path, _, last = name.rpartition(".")
        owner = _container(self.root, path)
        if isinstance(tensor, nn.Parameter):
            owner.register_parameter(last, tensor)
        else:
            owner.register_buffer(last, tensor)
        node = self.graph.get_attr(name)
        node.meta["val"] = mode.from_tensor(tensor, static_shapes=True)
        return node

    def write(self, node: fx.Node, body: fx.GraphModule | None) -> None:
        """Copy the node, or the body in its place."""
        if node.op == "get_attr":
            self._copies[node] = self._reads[id(_at(self._model, str(node.target)))]
        elif body is not None:
            self._copies[node] = self._inline(node, body)
        else:
            copy = self.graph.node_copy(node, self._copies.__getitem__)
            copy.meta = dict(node.meta)
            self._copies[node] = copy

    def _inline(self, call: fx.Node, body: fx.GraphModule) -> fx.Node:
        tensors = _tensors(self._model.get_submodule(str(call.target))).values()
        scope = {key: call.meta[key] for key in SCOPE if key in call.meta}
        x, *places = body.graph.find_nodes(op="placeholder")
        assert isinstance(call.args[0], fx.Node)
        copies = {x: self._copies[call.args[0]]}
        copies |= {p: self._reads[id(t)] for p, t in zip(places, tensors, strict=True)}
        for node in body.graph.nodes:
            if node.op not in ("placeholder", "output"):
                copies[node] = self.graph.node_copy(node, copies.__getitem__)
                copies[node].meta = {"val": node.meta.get("val"), **scope}
        result = body.graph.output_node().args[0]
        assert isinstance(result, fx.Node)
        return copies[result]


def _container(root: nn.Module, path: str) -> nn.Module:
    """The plain module at a dotted name, made with those on the way."""
    owner = root
    for step in filter(None, path.split(".")):
        if step not in owner._modules:
            owner.add_module(step, nn.Module())
        owner = owner._modules[step]  # type: ignore[assignment]
    return owner
