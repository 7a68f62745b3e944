# SPDX-License-Identifier: BSD-3-Clause
"""Every op of ours, and those of torch that ExecuTorch has no kernel for, in those that it has."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from blockscale.core.operand import Operand
from blockscale.export.to_executorch import core_ops, weights
from blockscale.graph.constants import drop_unused, get, is_constant
from blockscale.graph.lowering.decompose import Decomposer, bodies
from blockscale.graph.nodes import aten, bound, calls, ours, set_value
from blockscale.ops import primitives
from blockscale.ops.embedding import embedding


def write_out(graph: fx.GraphModule) -> None:
    """Put core ops of torch in the place of all others, in place.

    Raises ValueError that names an op whose meaning cannot be written so.
    """
    table = bodies()
    short = {embedding.overload: _rows, primitives.dequantize.overload: _dequantized}
    for node in _called(graph, table):
        body = short[node.target] if node.target in short and _short(graph, node) else None
        _replace(graph, node, table if body is None else table | {node.target: body})
    linear = {aten.linear.default: _linear}
    for node in _called(graph, linear):
        weight = node.args[1]
        if not is_constant(weight) and "quantized_decomposed" not in str(weight.target):  # type: ignore[union-attr]
            _replace(graph, node, linear)
    for node in graph.graph.nodes:
        if "val" not in node.meta:
            set_value(node)
    for node in _called(graph, core_ops.TABLE):
        _replace(graph, node, core_ops.TABLE)
    graph.graph.eliminate_dead_code()
    drop_unused(graph)
    graph.recompile()


def _called(graph: fx.GraphModule, table: dict[Any, Any]) -> list[fx.Node]:
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
    coded: Operand = bound(node, op)[0]
    if not is_constant(coded.codes) or (table and coded.format.block.flat):
        return False

    def held(part: Any) -> Any:
        return None if part is None else get(graph, part)

    more = None if coded.more is None else [held(part) for part in coded.more]
    whole = coded._replace(
        codes=held(coded.codes), scale=held(coded.scale), zero_point=held(coded.zero_point),
        outer=held(coded.outer), more=more, size=_size(coded, held(coded.codes)),
    )  # fmt: skip
    return weights.exact(whole)


def _size(coded: Operand, codes: Tensor) -> int:
    if isinstance(coded.size, int):
        return coded.size
    return int(codes.shape[-1] * 8 // coded.format.bits)


def _dequantized(*flat: Any) -> Tensor:
    return weights.dequantized(*primitives.dequantize.signature.bind(*flat))


def _rows(*flat: Any) -> Tensor:
    return weights.rows(*embedding.signature.bind(*flat))


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A product with a weight that is computed: XNNPACK takes those of batches alone."""
    rows = x.reshape(1, -1, x.shape[-1])
    y = torch.bmm(rows, weight.t().unsqueeze(0)).reshape(*x.shape[:-1], weight.shape[0])
    return y if bias is None else y + bias
