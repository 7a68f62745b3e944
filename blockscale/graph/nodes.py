# SPDX-License-Identifier: BSD-3-Clause
"""Small builders and readers of graph nodes that passes share."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from blockscale.core.operand import Operand, Quantizer
from blockscale.core.torch_private import detect_fake_mode, enable_python_dispatcher
from blockscale.graph.pickled import State, note
from blockscale.ops import primitives

# What nodes are called for people: the layer that they came from, and the line of their source.


def scope(node: fx.Node) -> str:
    """The dotted name of the module whose forward made the node; "" for the model's own.

    A graph keeps it in `nn_module_stack`, outermost module first.
    """
    stack: Any = node.meta.get("nn_module_stack") or {}
    last = next(reversed(stack.values()), ("", None))[0]
    return str(last).removeprefix("L['self']").lstrip(".")


def op_name(node: fx.Node) -> str:
    """What the node computes, in one word: `softmax` of `aten.softmax.int`."""
    if node.op != "call_function":
        return node.op
    schema: Any = getattr(node.target, "_schema", None)
    if schema is not None:
        return str(schema.name).rpartition("::")[2].removesuffix("_")
    return str(getattr(node.target, "__name__", node.target))


def source_line(node: fx.Node) -> str:
    """`file.py:12: y = self.fc(x)`, the innermost line of the model's source; "" if unknown."""
    trace = str(node.meta.get("stack_trace") or "")
    lines = [line.strip() for line in trace.splitlines() if line.strip()]
    places = [i for i, line in enumerate(lines) if line.startswith('File "')]
    own = [i for i in places if "/torch/nn/modules/" not in lines[i]]
    if not (own or places):
        return ""
    at = (own or places)[-1]
    parts = lines[at].split(",")
    where = parts[0].removeprefix('File "').rstrip('"')
    number = parts[1].strip().removeprefix("line ") if len(parts) > 1 else ""
    code = lines[at + 1] if at + 1 < len(lines) and at + 1 not in places else ""
    return f"{where}:{number}" + (f": {code}" if code else "")


def describe(node: fx.Node) -> str:
    """The node as errors and ledgers name it: `softmax of encoder.layer.0 (model.py:12: ...)`."""
    inside, line = scope(node), source_line(node)
    return op_name(node) + (f" of {inside}" if inside else "") + (f" ({line})" if line else "")


SCOPE = ("nn_module_stack", "stack_trace", "source_fn_stack")  # where a node comes from
aten: Any = torch.ops.aten
ours: Any = torch.ops.blockscale


class QuantizeNode(NamedTuple):
    """A node that quantizes: its float tensor, and how. With no scale in `by` it chooses one."""

    x: fx.Node
    by: Quantizer


class Dequantize(NamedTuple):
    """A node that makes floats of codes: the codes with all that stands beside them."""

    operand: Operand
    dtype: torch.dtype


def call(
    graph: fx.GraphModule,
    target: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    like: fx.Node,
) -> fx.Node:
    """A new node that calls `target`, just before `like`, with the layer and source line of `like`.

    Its meta["val"] is a fake tensor where those of its arguments are known. Raises what the
    target's shape rule raises for arguments that do not fit.
    """
    with graph.graph.inserting_before(like):
        node = graph.graph.call_function(target, args, dict(kwargs or {}))
    node.meta.update({key: like.meta[key] for key in SCOPE if key in like.meta})
    set_value(node)
    return node


def set_value(node: fx.Node) -> None:
    """Compute meta["val"] of a call_function node from those of its arguments, if all have one."""
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode  # loads sympy

    inputs = node.all_input_nodes
    if any("val" not in each.meta for each in inputs):
        return
    values = [each.meta["val"] for each in inputs]
    mode = detect_fake_mode(values)
    if mode is None or not callable(node.target):
        return
    args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: n.meta["val"])
    try:
        with mode, enable_python_dispatcher(), torch.no_grad():  # as torch.export traces
            node.meta["val"] = node.target(*args, **kwargs)
    except GuardOnDataDependentSymNode:
        node.meta.pop("val", None)  # sizes that only data tell: the node stays without a value


def replace(node: fx.Node, by: fx.Node) -> None:
    """Let all users of `node` use `by`, and drop `node`."""
    node.replace_all_uses_with(by)
    node.graph.erase_node(node)


def arguments(node: fx.Node) -> dict[str, Any]:
    """{name: argument} of a node that calls a torch op, with defaults for what is left out.

    Raises ValueError for a node that calls something else.
    """
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None:
        raise ValueError(f"expected a node that calls a torch op, found {node.format_node()}")
    names = [each.name for each in schema.arguments]
    data = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    values = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    return {name: values.get(name, data.get(name)) for name in names}


def calls(node: Any, *packets: Any) -> bool:
    """Whether it is a node that calls one of these ops (`aten.conv2d`: any overload of it)."""
    if not isinstance(node, fx.Node) or node.op != "call_function":
        return False
    packet = getattr(node.target, "overloadpacket", node.target)
    return packet in packets or node.target in packets


def each_call(graph: fx.GraphModule, *packets: Any) -> Iterator[fx.Node]:
    """The nodes that call one of these ops, as they are when the walk begins; erased ones not."""
    for node in list(graph.graph.nodes):
        if not node._erased and calls(node, *packets):
            yield node


def bound(node: fx.Node, op: Any) -> tuple[Any, ...]:
    """The own arguments (Operands, Quantizers, … of nodes) of a node that calls `op`, an Op."""
    return tuple(op.signature.bind(*arguments(node).values()))


def quantize_of(node: Any) -> QuantizeNode | None:
    """What a node quantizes and how; None if it is no `quantize` or `choose_quantize`."""
    if calls(node, ours.quantize):
        return QuantizeNode(*bound(node, primitives.quantize))
    if calls(node, ours.choose_quantize):
        x, fmt, seed = bound(node, primitives.choose_quantize)
        return QuantizeNode(x, Quantizer(None, None, None, fmt, seed))
    return None


def dequantize_of(node: Any) -> Dequantize | None:
    """What a node dequantizes; None if it is no `dequantize`."""
    return Dequantize(*bound(node, primitives.dequantize)) if calls(node, ours.dequantize) else None


def value(node: Any) -> Any:
    """What the node gives as far as shapes go: a fake tensor, a symbolic size; None if unknown."""
    return node.meta.get("val") if isinstance(node, fx.Node) else None


def shape(node: Any) -> tuple[Any, ...] | None:
    """The sizes of the tensor that a node gives, symbolic ones too; None if unknown."""
    result = value(node)
    return tuple(result.shape) if isinstance(result, Tensor) else None


def is_known(condition: Any) -> bool:
    """Whether it holds for every size that symbols may have; asks nothing that becomes a guard."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # loads sympy

    return bool(statically_known_true(condition))


def same_sizes(a: tuple[Any, ...] | None, b: tuple[Any, ...] | None) -> bool:
    """Whether two shapes are equal for every size that symbols may have."""
    if a is None or b is None or len(a) != len(b):
        return False
    return all(is_known(x == y) for x, y in zip(a, b, strict=True))


def say(graph: fx.GraphModule, node: fx.Node, text: str) -> None:
    """Note in the ledger why a node was left as it is; nothing where the graph has no ledger."""
    if isinstance(graph.meta.get("blockscale"), State):
        note(graph, describe(node), "node", text)


def inline(
    graph: fx.GraphModule, function: Callable[[Tensor], Tensor], x: fx.Node, like: fx.Node
) -> fx.Node:
    """The nodes of function(x), written before `like`."""
    from torch.fx.experimental.proxy_tensor import make_fx  # loads sympy

    copies: dict[fx.Node, fx.Node] = {}
    result = x
    for node in make_fx(function)(x.meta["val"]).graph.nodes:
        if node.op == "placeholder":
            copies[node] = x
        elif node.op == "output":
            result = copies[node.args[0]]
        else:
            args = fx.node.map_arg(node.args, copies.__getitem__)
            copies[node] = call(graph, node.target, args, node.kwargs, like=like)
    return result
