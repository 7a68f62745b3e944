# SPDX-License-Identifier: BSD-3-Clause
"""A convolution of codes becomes `fused_conv`, channels last, with a permute on either side.

    conv(permute(dq(x)), permute(view(dq(w))), b)  ->  permute(fused_conv(x..., w..., b))

Blocks run along channels, which are last in codes. The permutes cancel with their neighbours'
(blockscale.graph.passes.channels_last).

    gelu(conv(...))  ->  permute(fused_conv(..., activation="gelu"))

An activation whose last bits depend on an element's place in memory does not pass a permute, and so
goes into its convolution here, whose reference computes it of channels first.
"""

from math import prod
from typing import Any

import torch
from torch import Tensor, fx

from blockscale.core.operand import Value
from blockscale.core.pack import from_stored, grouped_layout
from blockscale.graph.nodes import (
    Dequantize,
    arguments,
    aten,
    call,
    calls,
    dequantize_of,
    each_call,
    shape,
    value,
)
from blockscale.graph.passes.fuse_activation import activation_of
from blockscale.graph.passes.fused import (
    Call,
    as_value,
    dtype_of,
    narrow_end,
    only_user,
    result,
    widened,
)
from blockscale.ops.fused import FUSED
from blockscale.ops.fused.plan import BY_PLACE

_CONVS = (aten.conv1d, aten.conv2d, aten.conv3d)
_TRANSPOSED = (aten.conv_transpose1d, aten.conv_transpose2d, aten.conv_transpose3d)
_MOVES = (
    *(aten.view, aten.reshape, aten.permute, aten.transpose, aten.contiguous),
    *(aten.clone, aten._unsafe_view),
)


def run(graph: fx.GraphModule) -> int:
    """Write `fused_conv` for each convolution with a coded weight. Equal to the bit."""
    count = 0
    for node in each_call(graph, aten.convolution, *_CONVS, *_TRANSPOSED):
        own = arguments(node)
        transposed = calls(node, *_TRANSPOSED) or bool(own.get("transposed"))
        weight = _stored(own["weight"], own["groups"], transposed)
        settings = _settings(own, transposed)
        floats = dtype_of(node) == dtype_of(own["input"]) == torch.float32
        if weight is None or settings is None or not floats:
            continue
        if len(shape(own["input"]) or ()) != len(settings["shape"]):
            continue  # an image without a batch
        _write(graph, node, own["input"], Value(*weight.operand), settings)
        count += 1
    return count


def _stored(weight: Any, groups: int, transposed: bool) -> Dequantize | None:
    """The stored matrix that the weight is made of as the layout says; None if it is another."""
    chain, node, sizes = [], weight, shape(weight)
    while calls(node, *_MOVES):
        chain.append(node)
        node = node.args[0]
    result, matrix = dequantize_of(node), shape(node)
    if result is None or result.dtype != torch.float32 or matrix is None or sizes is None:
        return None
    if len(matrix) != 2 or not all(isinstance(n, int) for n in (*matrix, *sizes)):
        return None
    places = torch.arange(prod(matrix)).reshape(matrix)
    layout = grouped_layout(groups) if transposed else "channels_last"
    expected = from_stored(places, layout, sizes)
    for each in reversed(chain):
        places = each.target(places, *each.args[1:], **each.kwargs)
    return result if torch.equal(places, expected) else None


def _settings(own: dict[str, Any], transposed: bool) -> dict[str, Any] | None:
    """Those of fused_conv; None for a padding that is not the same on both sides."""
    sizes = list(shape(own["weight"]) or ())
    count = len(sizes) - 2

    def each(name: str) -> list[int]:
        value = own.get(name)
        items = [0] if value is None else list(value)
        return items * count if len(items) == 1 else items

    if isinstance(own["padding"], str):
        padding = _padding(own["padding"], sizes[2:], each("dilation"))
    else:
        padding = each("padding")
    if padding is None:
        return None
    return {
        "bias": own["bias"], "shape": sizes, "stride": each("stride"), "padding": padding,
        "dilation": each("dilation"), "groups": own["groups"], "transposed": transposed,
        "output_padding": each("output_padding") if transposed else [],
    }  # fmt: skip


def _padding(word: str, kernel: list[int], dilation: list[int]) -> list[int] | None:
    total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    if word == "valid":
        return [0] * len(kernel)
    return None if any(n % 2 for n in total) else [n // 2 for n in total]


def _write(
    graph: fx.GraphModule, node: fx.Node, x: fx.Node, weight: Value, settings: dict[str, Any]
) -> None:
    rank = len(settings["shape"])
    channels_last, first = [0, *range(2, rank), 1], [0, rank - 1, *range(1, rank - 1)]
    values: Any = as_value(_before(graph, x, first, channels_last, node), torch.float32)
    if values is None:
        values = Value(_before(graph, x, first, channels_last, node))  # type: ignore[arg-type]
    if not values.fmt:
        values = Value(widened(values.data))  # type: ignore[arg-type]
    end, dtype = narrow_end(node)
    last, settings["activation"] = _activation(end)
    output = Call(FUSED["conv"], [values, weight], settings, dtype or torch.float32)
    y = result(graph, output.write(graph, node), node)
    permuted = call(graph, aten.permute.default, (y, first), like=node)
    last.replace_all_uses_with(permuted)
    graph.graph.eliminate_dead_code()  # what lies between the convolution and its last node
    views_to_reshapes(permuted)


def _activation(end: fx.Node) -> tuple[fx.Node, str]:
    """The node of the activation that a convolution ends in, and its name; the convolution's own
    end, and "", where there is none, or none that depends on places in memory."""
    before = only_user(end)
    before = before if calls(before, aten.contiguous) else end
    assert before is not None
    behind, in_order = only_user(before), value(before)
    if behind is None or not isinstance(in_order, Tensor) or not in_order.is_contiguous():
        return end, ""
    name = activation_of(behind, before)
    if name not in BY_PLACE or dtype_of(behind) != dtype_of(before):
        return end, ""
    return behind, name


def _before(
    graph: fx.GraphModule, x: fx.Node, first: list[int], last: list[int], like: fx.Node
) -> fx.Node:
    """x with its channels last: what was permuted to channels first, or x permuted."""
    if calls(x, aten.permute) and [n % len(first) for n in x.args[1]] == first:  # type: ignore[union-attr,operator]
        return x.args[0]  # type: ignore[return-value]
    return call(graph, aten.permute.default, (x, last), like=like)


def views_to_reshapes(node: fx.Node) -> None:
    """Let readers of a tensor that is no longer contiguous reshape it: a view may not be there."""
    for user in list(node.users):
        if calls(user, aten.view) and isinstance(value(node), Tensor):
            user.target = aten.reshape.default
