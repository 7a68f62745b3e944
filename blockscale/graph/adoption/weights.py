# SPDX-License-Identifier: BSD-3-Clause
"""Quantized constants become packed codes and scales, under the names that files of ours have."""

import operator
import re
from dataclasses import replace as replace_fields
from typing import Any

import torch
from torch import Tensor, fx

from blockscale.core.block import WHOLE, read_block
from blockscale.core.operand import Operand
from blockscale.core.pack import from_stored, grouped_layout, to_stored
from blockscale.core.parse import parse
from blockscale.graph import constants
from blockscale.graph.nodes import (
    arguments,
    aten,
    call,
    calls,
    dequantize_of,
    each_call,
    inline,
    ours,
    replace,
    scope,
    shape,
)
from blockscale.graph.passes import tidy
from blockscale.graph.passes.moved_blocks import of_block
from blockscale.ops import primitives
from blockscale.ops.embedding import embedding

# Weights of others' layers as ours store them: a matrix [outputs, inputs], channels last.
#
#     conv(x, dq(codes [o, i, *kernel]))  ->  conv(x, contiguous(permute(view(dq(codes [o, k])))))
#     addmm(b, x, dq(codes [k, o]))       ->  addmm(b, x, contiguous(t(dq(codes [o, k]))))
#
# So they are what `fuse` and every file of ours know. The values and their places stay.

WANTED = "blockscale_name"  # in a node's meta: what its buffer is to be called
_CONVS = (aten.convolution, aten.conv1d, aten.conv2d, aten.conv3d)
_PRODUCTS = (aten.addmm, aten.mm)
_TRANSPOSED = (aten.conv_transpose1d, aten.conv_transpose2d, aten.conv_transpose3d)


def store(graph: fx.GraphModule) -> int:
    """Write the weights of convolutions and of products so, in place; returns how many."""
    there: dict[tuple[fx.Node, str], fx.Node] = {}
    count = 0
    for node in each_call(graph, *_CONVS, *_TRANSPOSED, *_PRODUCTS):
        own = arguments(node)
        transposes = calls(node, *_TRANSPOSED) or bool(own.get("transposed"))
        layout, weight = "transposed", own.get("mat2")
        if weight is None:
            weight = own["weight"]
            layout = grouped_layout(own["groups"]) if transposes else "channels_last"
        if (weight, layout) not in there:
            result = _stored(graph, weight, layout, own.get("groups", 1))
            if result is None:
                continue
            there[weight, layout] = result
        node.replace_input_with(weight, there[weight, layout])
        count += 1
    return count


def _stored(graph: fx.GraphModule, weight: Any, layout: str, groups: int) -> fx.Node | None:
    """The weight made of a stored matrix; None where its scales are not those of outputs."""
    result, sizes = dequantize_of(weight), shape(weight)
    if result is None or sizes is None or len(sizes) < 2 or not _whole(result.operand):
        return None
    fmt = parse(result.operand.fmt)
    outputs = 0 if layout == "channels_last" else 1
    blocks = fmt.block.sizes_for(len(sizes))
    one = all(block == WHOLE for block in blocks)
    by_output = all((block == WHOLE) != (i == outputs) for i, block in enumerate(blocks))
    if not (one or (by_output and blocks[outputs] == 1)):
        return None
    spelling = result.operand.fmt if one else of_block(fmt, read_block("channel0"))
    read: Any = result.operand
    dense = ours.unpack(constants.get(graph, read.codes), read.fmt, sizes[-1])
    matrix = to_stored(dense, layout).contiguous()
    codes = ours.pack(matrix, spelling)

    def part(node: Any) -> Any:
        if node is None:
            return None
        values = constants.get(graph, node).reshape(-1, 1)
        values = values if one or not outputs else values.repeat(groups, 1)
        return _stored_kept(graph, node, values)

    scale, zero = part(read.scale), part(read.zero_point)
    value: Any = _stored_kept(graph, read.codes, codes)
    operand = Operand(value, scale, zero, None, spelling, matrix.shape[-1])
    args = primitives.dequantize.flatten(operand, result.dtype)
    values = call(graph, ours.dequantize.default, args, like=weight)
    output = inline(graph, lambda y: from_stored(y, layout, sizes), values, weight)
    return call(graph, aten.contiguous.default, (output,), like=weight)


def _whole(operand: Operand) -> bool:
    """Whether all that the codes need are constants: a scale, and perhaps a zero point."""
    parts = [
        each for each in (operand.codes, operand.scale, operand.zero_point) if each is not None
    ]
    return all(map(constants.is_constant, parts)) and operand.outer is None and not operand.more


def _stored_kept(graph: fx.GraphModule, like: fx.Node, tensor: Tensor) -> fx.Node:
    node = constants.put_constant(graph, "_stored", tensor.contiguous(), like=like)
    node.meta[WANTED] = like.meta.get(WANTED, str(like.target))
    return node


def fold(graph: fx.GraphModule) -> int:
    """Compute what quantizes constants, let embeddings read codes, name buffers. In place."""
    count = _quantized_constants(graph)
    tidy(graph)  # the float weights go, so that their names are free
    _plain(graph)
    count += _embeddings(graph) + store(graph)
    tidy(graph)
    _name(graph)
    return count


def _quantized_constants(graph: fx.GraphModule) -> int:
    """The results of quantize and choose_quantize nodes of constants, as buffers."""
    values: dict[fx.Node, Any] = {}
    constant: set[fx.Node] = set()
    for node in graph.graph.nodes:
        inputs = node.all_input_nodes
        of_constants = node.op == "call_function" and inputs and constant.issuperset(inputs)
        if node.op == "get_attr" or (of_constants and not _random(node)):
            constant.add(node)
    results = list(each_call(graph, ours.quantize, ours.choose_quantize, ours.pack))
    count = 0
    for node in results:
        if node not in constant:
            continue
        result = _compute(graph, node, values)
        base = _root(node)
        if isinstance(result, Tensor):
            replace(node, _keep(graph, result, f"{base}.codes", node))
        else:
            names = ("codes", *parse(str(node.args[1])).parts)
            for user in list(node.users):
                place: Any = user.args[1]
                replace(user, _keep(graph, result[place], f"{base}.{names[place]}", node))
        count += 1
    return count


def _plain(graph: fx.GraphModule) -> None:
    """Formats of constants without `recip`, which says how they were quantized and not what they
    are: kernels know the format that is left."""
    for node in each_call(graph, ours.dequantize):
        result = dequantize_of(node)
        if result is None or not constants.is_constant(result.operand.codes):
            continue
        fmt = parse(result.operand.fmt)
        if fmt.recip:
            operand = result.operand._replace(fmt=replace_fields(fmt, recip=False).spelling)
            node.args = tuple(primitives.dequantize.flatten(operand, result.dtype))


def _random(node: fx.Node) -> bool:
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags


def _compute(graph: fx.GraphModule, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    """What a node of constants gives."""
    if node not in values:
        if node.op == "get_attr":
            values[node] = constants.get(graph, node).detach()
        else:
            args, kwargs = fx.node.map_arg(
                (node.args, dict(node.kwargs)), lambda n: _compute(graph, n, values)
            )
            with torch.no_grad():
                values[node] = node.target(*args, **kwargs)  # type: ignore[operator]
    return values[node]


def _keep(graph: fx.GraphModule, tensor: Tensor, name: str, like: fx.Node) -> fx.Node:
    node = constants.put_constant(graph, "_adopted", tensor.contiguous(), like=like)
    node.meta[WANTED] = name
    return node


def _root(node: fx.Node) -> str:
    """What a quantized constant is called: its parameter's name, or that of the layer which reads
    it where an exporter gave the parameter a name of its own."""
    first = node
    while first.op != "get_attr":
        first = first.all_input_nodes[0]
    name = str(first.meta.get(WANTED, first.target)).removesuffix(".codes")
    return _of_reader(node) or name if re.fullmatch(r"_\w*\d*", name) else name


def reader_of(node: fx.Node) -> str:
    """`encoder.fc.weight` for what ends in the weight of that layer's op, `encoder.fc.input` for
    what ends in its input, else the place and the node's own name."""
    last, layer = node, scope(node)
    while last.users and not layer:
        last = next(iter(last.users))
        layer = scope(last)
    return _of_reader(node) or f"{layer}.{node.name}".lstrip(".")


_PARTS = {"weight": "weight", "mat2": "weight", "bias": "bias", "input": "input", "mat1": "input"}
_MOVING = ("view", "permute", "reshape", "t", "transpose", "_to_copy", "to", "mul", "clone")


def _of_reader(node: fx.Node) -> str:
    """The layer and the part that a quantized tensor is of; "" if the graph does not say."""
    while node.users:
        user = next(iter(node.users))
        schema: Any = getattr(user.target, "_schema", None)
        name = "" if schema is None else str(schema.name).rpartition("::")[2]
        names = [a.name for a in schema.arguments] if schema is not None else []
        passes_on = user.target is operator.getitem or name in _MOVING or "quantize" in name
        if not passes_on:
            for argument, value in zip(names, user.args, strict=False):
                if value is node and argument in _PARTS and scope(user):
                    return f"{scope(user)}.{_PARTS[argument]}"
            return ""
        node = user
    return ""


def _embeddings(graph: fx.GraphModule) -> int:
    """aten.embedding(dequantize(codes), indices) -> ours, which dequantizes the rows asked for."""
    count = 0
    for node in each_call(graph, aten.embedding):
        result = dequantize_of(node.args[0])
        if result is None or not constants.is_constant(result.operand.codes):
            continue
        args = embedding.flatten(result.operand, node.args[1], result.dtype)
        replace(node, call(graph, embedding.overload, args, like=node))
        count += 1
    return count


def _name(graph: fx.GraphModule) -> None:
    """Give buffers the names that they are to have, one buffer to equal ones of one name."""
    by_name: dict[str, fx.Node] = {}
    for node in [n for n in graph.graph.nodes if n.op == "get_attr" and WANTED in n.meta]:
        name = node.meta.pop(WANTED)
        if _is_taken(graph, name):
            name = name.replace(".", "_")
        there = by_name.get(name)
        if there is None or not constants.same(graph, there, node):
            tensor = constants.get(graph, node)
            result = constants.put_constant(graph, name, tensor, like=node)
            result.meta["val"] = node.meta.get("val", result.meta.get("val"))
            there = by_name.setdefault(name, result) if name not in by_name else result
        replace(node, there)


def _is_taken(graph: fx.GraphModule, name: str) -> bool:
    """Whether a tensor lies where the name would need a module."""
    *above, _ = name.split(".")
    value: Any = graph
    for step in above:
        value = getattr(value, step, None)
        if isinstance(value, Tensor):
            return True
    return False
