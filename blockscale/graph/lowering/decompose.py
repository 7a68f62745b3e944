# SPDX-License-Identifier: BSD-3-Clause
"""Ops of ours replaced by the torch ops that their references call: the same bits, no op of ours.

What is traced is the reference itself, on fake tensors with the sizes that the node has, symbolic
ones too. Done in the graph rather than in torch's table of decompositions, which is read once in a
process and ignores later entries without a word.
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from blockscale.core.torch_private import (
    FakeTensor,
    FakeTensorMode,
    enable_python_dispatcher,
    pytree,
)
from blockscale.graph.constants import get, is_constant, put_constant
from blockscale.graph.lowering.kernels import REFERENCE
from blockscale.graph.lowering.way import by_overload
from blockscale.kernels.registry import as_chosen
from blockscale.ops.op import Op

Body = Callable[..., Any]


def bodies() -> dict[Any, Body]:
    """{torch op of ours: its reference, as a function of the torch op's arguments}."""
    return {op.overload: _body(op) for op in by_overload().values()}


def _body(op: Op) -> Body:
    def body(*flat: Any, **by_name: Any) -> Any:
        names = op.signature.names[len(flat) :]
        defaults = {each.name: each.default for each in op.signature.flat}
        flat += tuple(by_name.get(name, defaults[name]) for name in names)
        with as_chosen(REFERENCE):  # references of fused ops look for kernels of what they call
            return op.reference(*op.signature.bind(*flat))

    return body


class Decomposer:
    """Replaces nodes of one graph; nodes that are alike are traced once."""

    def __init__(self, graph: fx.GraphModule, table: dict[Any, Body] | None = None):
        """table: {torch op: what is traced in its place}; by default that of our ops."""
        self._graph = graph
        self._table = bodies() if table is None else table
        self._mode = _fake_mode(graph)
        self._traced: dict[str, fx.GraphModule] = {}

    def reason(self, node: fx.Node) -> str | None:
        """Why the node's reference cannot stand in its place, or None."""
        try:
            result = self._body(node).graph.output_node().args[0]
        except Exception as error:  # tracing runs any code: what failed is the reason
            first = str(error).strip().partition("\n")[0]
            return f"its reference cannot be traced: {type(error).__name__}: {first}"
        users = [user for user in node.users if user.target is not operator.getitem]
        if users and not isinstance(result, fx.Node):
            return f"{users[0].name} reads its list of results as a whole"
        return None

    def replace(self, node: fx.Node) -> None:
        """Put the reference's ops in the node's place. Raises what tracing raises."""
        body = self._body(node)
        flat = pytree.tree_flatten((node.args, node.kwargs))[0]
        nodes = [each for each in flat if isinstance(each, fx.Node)]
        inputs = [each for each in nodes if _is_input(self._value(each))]
        _inline(self._graph, node, body, inputs, self._mode)

    def _body(self, node: fx.Node) -> fx.GraphModule:
        """The graph of the node's reference; its placeholders are the node's inputs in order."""
        flat, spec = pytree.tree_flatten((node.args, node.kwargs))
        flat = [self._value(each) if isinstance(each, fx.Node) else each for each in flat]
        inputs = [i for i, each in enumerate(flat) if _is_input(each)]
        key = f"{node.target} {spec} {[_key(each) for each in flat]}"
        if key not in self._traced:
            target = self._table[node.target]

            def run(*tensors: Any) -> Any:
                arguments = list(flat)
                for i, value in zip(inputs, tensors, strict=True):
                    arguments[i] = value
                args, keywords = pytree.tree_unflatten(arguments, spec)
                return target(*args, **keywords)

            with torch.no_grad(), enable_python_dispatcher():  # whose rules know symbolic sizes
                traced = make_fx(run, decomposition_table=self._table)(*(flat[i] for i in inputs))
            traced.graph.eliminate_dead_code()
            self._traced[key] = traced
        return self._traced[key]

    def _value(self, node: fx.Node) -> Any:
        value = node.meta.get("val")
        if value is None and node.op == "get_attr":
            value = operator.attrgetter(str(node.target))(self._graph)
        if value is None:
            raise ValueError(f"the shape of {node.name} is not known")
        if isinstance(value, Tensor) and not isinstance(value, FakeTensor):
            value = node.meta["val"] = self._mode.from_tensor(value, static_shapes=True)
        return value


def _fake_mode(graph: fx.GraphModule) -> FakeTensorMode:
    """The mode of the graph's values, or a new one where it has none."""
    for node in graph.graph.nodes:
        if isinstance(value := node.meta.get("val"), FakeTensor):
            return value.fake_mode
    return FakeTensorMode()


def _is_input(value: Any) -> bool:
    return isinstance(value, Tensor | torch.SymInt | torch.SymFloat | torch.SymBool)


def _key(value: Any) -> str:
    """What tracing sees of an argument."""
    if isinstance(value, Tensor):
        return f"{value.dtype} {value.device} {tuple(value.shape)} {value.stride()}"
    return f"{type(value).__name__} {value!r}"


def _inline(
    graph: fx.GraphModule,
    node: fx.Node,
    body: fx.GraphModule,
    inputs: list[fx.Node],
    mode: FakeTensorMode,
) -> None:
    """Copy the body's nodes before `node`, hand over its users and remove it."""
    placeholders = [each for each in body.graph.nodes if each.op == "placeholder"]
    copies: dict[fx.Node, fx.Node] = dict(zip(placeholders, inputs, strict=True))
    result: Any = None
    with graph.graph.inserting_before(node):
        for each in body.graph.nodes:
            if each.op == "placeholder":
                continue
            if each.op == "output":
                result = fx.node.map_arg(each.args[0], lambda n: copies[n])
                continue
            if is_constant(each):  # a table that the function made
                name = f"tables.{each.target}"
                copies[each] = put_constant(graph, name, get(body, each), like=node)
                continue
            copy = graph.graph.node_copy(each, lambda n: copies[n])
            copy.meta.update(_origin(node.meta))
            _give_value(copy, mode)
            copies[each] = copy
    _hand_over(node, result)


def _give_value(node: fx.Node, mode: FakeTensorMode) -> None:
    """Constants that were made while tracing, and what depends on them alone, have values of modes
    of their own: one of the graph's mode in their place."""
    value = node.meta.get("val")
    if isinstance(value, FakeTensor) and value.fake_mode is not mode:
        with mode:
            node.meta["val"] = torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device=value.device
            )


def _origin(meta: Mapping[str, Any]) -> dict[str, Any]:
    return {key: meta[key] for key in ("nn_module_stack", "stack_trace") if key in meta}


def _hand_over(node: fx.Node, result: Any) -> None:
    if isinstance(result, fx.Node):
        node.replace_all_uses_with(result)
    else:
        for user in list(node.users):
            user.replace_all_uses_with(result[user.args[1]])
            user.graph.erase_node(user)
    node.graph.erase_node(node)
