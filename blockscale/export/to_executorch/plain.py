# SPDX-License-Identifier: BSD-3-Clause
"""Every op of ours, and those of torch that ExecuTorch has no kernel for, in those that it has."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from blockscale.core.format import Format
from blockscale.core.operand import Operand
from blockscale.core.scale import FloatScale, PowerOfTwo
from blockscale.export.to_executorch import core_ops, weights
from blockscale.graph.constants import drop_unused, get, is_constant
from blockscale.graph.lowering.decompose import Decomposer, bodies
from blockscale.graph.nodes import (
    aten,
    bound,
    call,
    calls,
    dequantize_of,
    each_call,
    ours,
    quantize_of,
    replace,
    set_value,
    shape,
)
from blockscale.ops import primitives
from blockscale.ops.embedding import embedding

# Copies that XNNPACK does not need: permutes around quantizers that see no order of dimensions.


def per_tensor(fmt: Format) -> bool:
    """Whether it is integers of 8 bits under one scale."""
    return integer(fmt, 8) and str(fmt.block) == "tensor"


def integer(fmt: Format, bits: int) -> bool:
    """Whether it is integers of these bits under float scales, by the contract's rounding."""
    scale = fmt.scale
    floats = isinstance(scale, FloatScale) or (isinstance(scale, PowerOfTwo) and not scale.byte)
    own = fmt.offset is None and fmt.zero is None and fmt.rounding == "nearest_even"
    return fmt.element.integer and fmt.bits == bits and floats and own


def drop_copies(graph: fx.GraphModule) -> None:
    """Permutes around a quantizer per tensor, and contiguous: XNNPACK lays tensors out itself."""
    for node in each_call(graph, aten.contiguous):
        replace(node, node.args[0])  # type: ignore[arg-type]
    for node in each_call(graph, aten.movedim):
        source: Any = node.args[0]
        dims = _permutation(len(shape(source) or ()), *node.args[1:3])
        replace(node, call(graph, aten.permute.default, (source, dims), like=node))
    while any(_drop_permute(node) for node in each_call(graph, aten.permute)):
        graph.graph.eliminate_dead_code()


def _drop_permute(node: fx.Node) -> bool:
    """Drop a permute that undoes the one before it, through a quantizer too; whether it did."""
    source: Any = node.args[0]
    if calls(source, aten.permute) and _undo(source.args[1], node.args[1]):
        replace(node, source.args[0])
        return True
    inner = dequantize_of(source)
    quantized = None if inner is None else quantize_of(inner.operand.codes)
    if inner is None or quantized is None or not per_tensor(inner.operand.format):
        return False
    codes: Any = inner.operand.codes
    before: Any = quantized.x
    alone = len(codes.users) == len(source.users) == 1
    if not (alone and calls(before, aten.permute) and _undo(before.args[1], node.args[1])):
        return False
    last = (shape(before.args[0]) or (None,))[-1]
    if not isinstance(last, int):
        return False
    codes.replace_input_with(before, before.args[0])
    _set_size(source, last)
    for each in (codes, source):
        each.meta.pop("val", None)
        set_value(each)
    replace(node, source)
    return True


def _set_size(node: fx.Node, size: int) -> None:
    """Set how many codes a row of a dequantize node has."""
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    at = names.index("size")
    if at < len(node.args):
        node.update_arg(at, size)
    else:
        node.update_kwarg("size", size)


def _undo(first: Any, second: Any) -> bool:
    return [first[i] for i in second] == list(range(len(first)))


def _permutation(rank: int, source: Any, target: Any) -> list[int]:
    """The dimensions of movedim as permute takes them."""
    sizes = torch.empty(tuple(range(2, 2 + rank)), device="meta").movedim(source, target).shape
    return [size - 2 for size in sizes]


def write_out(graph: fx.GraphModule) -> None:
    """Put core ops of torch in the place of all others, in place.

    Raises ValueError that names an op whose meaning cannot be written so.
    """
    table = bodies()
    short = {embedding.overload: _rows, primitives.dequantize.overload: _dequantized}
    for node in _calls(graph, table):
        body = short[node.target] if node.target in short and _short(graph, node) else None
        _replace(graph, node, table if body is None else table | {node.target: body})
    linear = {aten.linear.default: _linear}
    for node in _calls(graph, linear):
        weight = node.args[1]
        if not is_constant(weight) and "quantized_decomposed" not in str(weight.target):  # type: ignore[union-attr]
            _replace(graph, node, linear)
    for node in graph.graph.nodes:
        if "val" not in node.meta:
            set_value(node)
    for node in _calls(graph, core_ops.TABLE):
        _replace(graph, node, core_ops.TABLE)
    graph.graph.eliminate_dead_code()
    drop_unused(graph)
    graph.recompile()


def _calls(graph: fx.GraphModule, table: dict[Any, Any]) -> list[fx.Node]:
    return [n for n in graph.graph.nodes if n.op == "call_function" and n.target in table]


def _replace(graph: fx.GraphModule, node: fx.Node, table: dict[Any, Callable[..., Any]]) -> None:
    writer = Decomposer(graph, table)
    if reason := writer.reason(node):
        raise ValueError(f"{node.name} ({node.target}) cannot be written in core ops: {reason}")
    writer.replace(node)


def _short(graph: fx.GraphModule, node: fx.Node) -> bool:
    """Whether the node decodes constants that `weights` decodes to the same bits."""
    table = calls(node, ours.embedding)
    op = embedding if table else primitives.dequantize
    operand: Operand = bound(node, op)[0]
    if not is_constant(operand.codes) or (table and operand.format.block.flat):
        return False

    def load(part: Any) -> Any:
        return None if part is None else get(graph, part)

    more = None if operand.more is None else [load(part) for part in operand.more]
    whole = operand._replace(
        codes=load(operand.codes), scale=load(operand.scale), zero_point=load(operand.zero_point),
        outer=load(operand.outer), more=more, size=_size(operand, load(operand.codes)),
    )  # fmt: skip
    return weights.exact(whole)


def _size(operand: Operand, codes: Tensor) -> int:
    if isinstance(operand.size, int):
        return operand.size
    return int(codes.shape[-1] * 8 // operand.format.bits)


def _dequantized(*flat: Any) -> Tensor:
    return weights.dequantized(*primitives.dequantize.signature.bind(*flat))


def _rows(*flat: Any) -> Tensor:
    return weights.rows(*embedding.signature.bind(*flat))


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A product with a weight that is computed: XNNPACK takes those of batches alone."""
    rows = x.reshape(1, -1, x.shape[-1])
    y = torch.bmm(rows, weight.t().unsqueeze(0)).reshape(*x.shape[:-1], weight.shape[0])
    return y if bias is None else y + bias
