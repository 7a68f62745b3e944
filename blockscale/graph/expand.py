# SPDX-License-Identifier: BSD-3-Clause
"""Layers' ops written out: quantize, dequantize and torch's own op in the place of one of ours.

What `torch.export` makes of quantized layers, `blockscale.linear(x, codes, …)`, becomes
`aten.linear(dequantize(quantize(x)), dequantize(codes))`: the form that passes work on, and that
other tools read. It computes what the reference of the op does, op by op.
"""

from collections.abc import Callable
from operator import getitem
from typing import Any

import torch
from torch import fx

from blockscale.core.operand import Operand, Quantizer
from blockscale.graph.nodes import (
    arguments,
    aten,
    bound,
    call,
    each_call,
    ours,
    replace,
    shape,
    value,
)
from blockscale.graph.passes import tidy
from blockscale.ops import primitives
from blockscale.ops.conv import conv
from blockscale.ops.conv_transpose import conv_transpose
from blockscale.ops.linear import linear

F32 = torch.float32


def expand(graph: fx.GraphModule) -> int:
    """Write out every `fake_quantize`, `linear`, `conv` and `conv_transpose` of ours, in place.

    Returns how many there were. Embeddings stay: they dequantize only the rows that are asked for.
    """
    count = 0
    for op, write in _WRITERS.items():
        for node in each_call(graph, getattr(ours, op.name)):
            replace(node, write(graph, node, op))
            count += 1
    tidy(graph)
    return count


def quantized(
    graph: fx.GraphModule, x: fx.Node, by: Quantizer, dtype: torch.dtype, like: fx.Node
) -> fx.Node:
    """The values that a format leaves of x: quantize and dequantize nodes before `like`."""
    size = _size(graph, x, like)
    if by.scale is None:
        choice = call(graph, ours.choose_quantize.default, (x, by.fmt, by.seed), like=like)
        count = 1 + len(by.format.parts)
        every: Any = [call(graph, getitem, (choice, index), like=like) for index in range(count)]
        codes: Any = every[0]  # nodes stand for tensors
        by_name = dict(zip(by.format.parts, every[1:], strict=True))
        more = [by_name[n] for n in by.format.parts if n not in ("scale", "outer", "zero_point")]
        operand = Operand(
            codes, by_name["scale"], by_name.get("zero_point"), by_name.get("outer"), by.fmt, size,
            more or None,
        )  # fmt: skip
    else:
        by = _of_rank(graph, by, x, like)
        codes = call(graph, ours.quantize.default, primitives.quantize.flatten(x, by), like=like)
        assert by.scale is not None
        operand = Operand(codes, by.scale, by.zero_point, by.outer, by.fmt, size, by.more)
    return _dequantized(graph, operand, dtype, like)


def _dequantized(graph: fx.GraphModule, operand: Operand, dtype: torch.dtype, like: fx.Node) -> Any:
    args = primitives.dequantize.flatten(operand, dtype)
    return call(graph, ours.dequantize.default, args, like=like)


def _size(graph: fx.GraphModule, x: fx.Node, like: fx.Node) -> Any:
    """The size of x's last dimension, as a node where it is a symbol."""
    sizes = shape(x)
    if sizes is None:
        raise ValueError(f"the shape of {x.name} is not known: export the program again")
    if not sizes:
        return 1
    last = sizes[-1]
    return last if isinstance(last, int) else call(graph, aten.sym_size.int, (x, -1), like=like)


def _of_rank(graph: fx.GraphModule, by: Quantizer, x: fx.Node, like: fx.Node) -> Quantizer:
    """A given scale with as many dimensions as x has: ones before its own."""
    rank = len(shape(x) or ())

    def view(part: Any) -> Any:
        sizes = shape(part)
        if part is None or sizes is None or len(sizes) == rank:
            return part
        full = [1] * (rank - len(sizes)) + list(sizes)[max(len(sizes) - rank, 0) :]
        return call(graph, aten.view.default, (part, full), like=like)

    more = None if by.more is None else [view(part) for part in by.more]
    return by._replace(
        scale=view(by.scale), zero_point=view(by.zero_point), outer=view(by.outer), more=more
    )


def _to(graph: fx.GraphModule, x: Any, dtype: torch.dtype, like: fx.Node) -> Any:
    """x in this dtype; x itself where it has it, or is None."""
    if x is None or value(x) is None or value(x).dtype == dtype:
        return x
    return call(graph, aten.to.dtype, (x, dtype), like=like)


def _input(graph: fx.GraphModule, x: fx.Node, by: Quantizer, like: fx.Node) -> fx.Node:
    """The float32 values of x that a layer computes with."""
    if by.fmt:
        return quantized(graph, x, by, F32, like)
    node: fx.Node = _to(graph, x, F32, like)
    return node


def _write_fake_quantize(graph: fx.GraphModule, node: fx.Node, op: Any) -> fx.Node:
    x, by = bound(node, op)
    values = quantized(graph, x, by, value(x).dtype, node)
    strides = value(x).stride()
    order = sorted(range(len(strides)), key=lambda dim: -_size_of(strides[dim]))
    if order == sorted(order):
        return values
    # the op gives what lies as x does, and float sums behind it depend on that in their last bits
    values = call(graph, aten.permute.default, (values, order), like=node)
    values = call(graph, aten.contiguous.default, (values,), like=node)
    back = [order.index(dim) for dim in range(len(order))]
    return call(graph, aten.permute.default, (values, back), like=node)


def _size_of(size: Any) -> int:
    """A stride, of a symbol that of the example."""
    return int(size if isinstance(size, int) else size.node.hint)


def _write_linear(graph: fx.GraphModule, node: fx.Node, op: Any) -> fx.Node:
    x = node.args[0]
    assert isinstance(x, fx.Node)
    # the op takes the weight's row size from x: the node has none, its value has
    _, weight, bias, by = op.signature.bind(value(x), *list(arguments(node).values())[1:])
    values = _input(graph, x, by, node)
    dense = _dequantized(graph, weight, F32, node)
    y = call(graph, aten.linear.default, (values, dense, _to(graph, bias, F32, node)), like=node)
    return _to(graph, y, value(x).dtype, node)


_CONVS = {1: aten.conv1d.default, 2: aten.conv2d.default, 3: aten.conv3d.default}
_TRANSPOSED = {
    1: aten.conv_transpose1d.default,
    2: aten.conv_transpose2d.input,
    3: aten.conv_transpose3d.input,
}


def _write_conv(graph: fx.GraphModule, node: fx.Node, op: Any) -> fx.Node:
    x, weight, bias, sizes, stride, padding, dilation, groups, by = bound(node, op)
    n, kernel, rank = sizes[0], list(sizes[2:]), len(sizes)
    dense = _dequantized(graph, weight, F32, node)
    dense = call(graph, aten.view.default, (dense, [n, *kernel, sizes[1]]), like=node)
    dense = call(graph, aten.permute.default, (dense, _channels_first(rank)), like=node)
    args = (_channels(graph, x, by, node), dense, _to(graph, bias, F32, node))
    settings = (stride, padding, dilation, groups)
    y = call(graph, _CONVS[rank - 2], (*args, *settings), like=node)
    return _finish(graph, y, x, node)


def _write_conv_transpose(graph: fx.GraphModule, node: fx.Node, op: Any) -> fx.Node:
    x, weight, bias, sizes, stride, padding, more, dilation, groups, by = bound(node, op)
    rank = len(sizes)
    dense = _dequantized(graph, weight, F32, node)
    apart = [groups, *sizes[1:], sizes[0] // groups]
    dense = call(graph, aten.view.default, (dense, apart), like=node)
    order = [0, rank, *range(1, rank)]  # from_stored: the inputs of a group go before its outputs
    dense = call(graph, aten.permute.default, (dense, order), like=node)
    dense = call(graph, aten.reshape.default, (dense, list(sizes)), like=node)
    args = (_channels(graph, x, by, node), dense, _to(graph, bias, F32, node))
    settings = (stride, padding, more, groups, dilation)
    y = call(graph, _TRANSPOSED[rank - 2], (*args, *settings), like=node)
    return _finish(graph, y, x, node)


def _channels(graph: fx.GraphModule, x: fx.Node, by: Quantizer, like: fx.Node) -> fx.Node:
    """x [batch, channels, *size] as the convolution sees it: quantized with its channels last."""
    if not by.fmt:
        node: fx.Node = _to(graph, x, F32, like)
        return node
    rank = len(shape(x) or ())
    last = call(graph, aten.permute.default, (x, [0, *range(2, rank), 1]), like=like)
    values = quantized(graph, last, by, F32, like)
    return call(graph, aten.permute.default, (values, _channels_first(rank)), like=like)


def _channels_first(rank: int) -> list[int]:
    return [0, rank - 1, *range(1, rank - 1)]


def _finish(graph: fx.GraphModule, y: fx.Node, x: fx.Node, like: fx.Node) -> fx.Node:
    """A convolution's result in x's dtype and in order, as the op gives it."""
    y = _to(graph, y, value(x).dtype, like)
    return call(graph, aten.contiguous.default, (y,), like=like)


_WRITERS: dict[Any, Callable[[fx.GraphModule, fx.Node, Any], fx.Node]] = {
    primitives.fake_quantize: _write_fake_quantize,
    linear: _write_linear,
    conv: _write_conv,
    conv_transpose: _write_conv_transpose,
}
