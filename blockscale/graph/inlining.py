# SPDX-License-Identifier: BSD-3-Clause
"""The layers of a graph written out as the ops that they call, each traced by itself.

`torch.export` of a whole graph traces every op of it again, which takes most of what converting a
program takes, though only layers and edges became others. Here those alone are traced, on the fake
tensors that the graph knows, with their symbolic sizes; all other nodes stay as they are. Where
that would not give what a whole export gives, nothing is written out and the caller exports.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn

from blockscale.core.torch_private import (
    FakeTensor,
    FakeTensorMode,
    detect_fake_mode,
    enable_python_dispatcher,
    exporting,
)
from blockscale.graph.nodes import SCOPE, same_sizes, value
from blockscale.graph.pickled import Graph, set_state, state


def inlined(model: fx.GraphModule) -> fx.GraphModule | None:
    """A graph of ops over the tensors of `model`, in containers of its own; or None.

    model: its modules take one tensor and give one. It is None where a node has no fake tensor, a
        layer gives another dtype, shape or layout than the node that called it knows, or a trace
        asks something of symbolic sizes that is not known of all of them.
    """
    calls = list(model.graph.find_nodes(op="call_module"))
    values = [value(node) for node in model.graph.nodes]
    mode = detect_fake_mode([each for each in values if isinstance(each, FakeTensor)])
    if mode is None or not all(map(_is_plain_call, calls)) or not _only_tensors(model):
        return None
    with _same_guards(mode) as kept:
        bodies = {node: _body(model.get_submodule(str(node.target)), node, mode) for node in calls}
    if not kept() or not all(map(_fits, calls, bodies.values())):
        return None
    return _written(model, bodies, mode)


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
    for held in (owner._parameters, owner._buffers, owner._modules):
        if last in held:
            return held[last]
    return getattr(owner, last, None)


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    named = dict[str, Tensor](module.named_parameters(remove_duplicate=False))
    return named | dict(module.named_buffers(remove_duplicate=False))


def _body(module: nn.Module, node: fx.Node, mode: FakeTensorMode) -> fx.GraphModule:
    """The ops of a module for the node's input; placeholders are the input and the tensors."""
    from torch.fx.experimental.proxy_tensor import make_fx  # loads sympy

    named = _tensors(module)

    def run(x: Tensor, *tensors: Tensor) -> Any:
        given = dict(zip(named, tensors, strict=True))
        return torch.func.functional_call(module, given, (x,), tie_weights=False)

    fakes = [mode.from_tensor(tensor, static_shapes=True) for tensor in named.values()]
    with torch.no_grad(), enable_python_dispatcher(), exporting():
        made = make_fx(run, pre_dispatch=True)(value(node.args[0]), *fakes)
    made.graph.eliminate_dead_code()
    return made


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

    def known() -> tuple[int, ...]:
        if sizes is None:
            return ()
        return len(sizes.guards), len(sizes.replacements), sizes.num_deferred_runtime_asserts

    before = known()
    yield lambda: known() == before


def _written(
    model: fx.GraphModule, bodies: dict[fx.Node, fx.GraphModule], mode: FakeTensorMode
) -> fx.GraphModule:
    """The graph with the bodies in the place of the calls."""
    writer = _Writer(model, mode)
    for node in model.graph.nodes:
        writer.write(node, bodies.get(node))
    made = Graph(writer.root, writer.graph)
    made.train(model.training)
    set_state(made, state(model))
    return made


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
        named = _tensors(model)
        last = {id(tensor): name for name, tensor in named.items()}
        self._reads = {id(t): self._read(n, t, mode) for n, t in named.items() if last[id(t)] == n}

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
        known = {x: self._copies[call.args[0]]}
        known |= {p: self._reads[id(t)] for p, t in zip(places, tensors, strict=True)}
        for node in body.graph.nodes:
            if node.op not in ("placeholder", "output"):
                known[node] = self.graph.node_copy(node, known.__getitem__)
                known[node].meta = {"val": node.meta.get("val"), **scope}
        result = body.graph.output_node().args[0]
        assert isinstance(result, fx.Node)
        return known[result]


def _container(root: nn.Module, path: str) -> nn.Module:
    """The plain module at a dotted name, made with those on the way."""
    owner = root
    for step in filter(None, path.split(".")):
        if step not in owner._modules:
            owner.add_module(step, nn.Module())
        owner = owner._modules[step]  # type: ignore[assignment]
    return owner
