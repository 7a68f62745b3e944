# SPDX-License-Identifier: BSD-3-Clause
"""Linears of one tensor become one linear: the q, k and v of attention.

    linear(x, q), linear(x, k), linear(x, v)  ->  split(linear(x, [q; k; v]))

Rows of codes, scales and biases are joined as constants, the result is split by slices. Each output
is the same sum of the same products; a matrix product of another size may add them in another order
(within the ulps of `fused_linear`).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from blockscale.core.block import WHOLE
from blockscale.core.operand import Operand
from blockscale.core.parse import parse
from blockscale.core.scales import TwoLevel
from blockscale.graph.constants import equal_bits, get, is_constant, put_constant
from blockscale.graph.nodes import (
    Dequantize,
    arguments,
    aten,
    call,
    dequantize_of,
    each_call,
    ours,
    quantize_of,
    replace,
    shape,
)
from blockscale.graph.passes.fuse_activation import activation_of
from blockscale.graph.passes.fuse_conv import views_to_reshapes
from blockscale.ops import primitives

MERGED = "blockscale_merged"  # in a graph's meta: {codes of a joined layer: names of the layers}
_PARTS = ("codes", "scale", "zero_point", "outer")


def run(graph: fx.GraphModule) -> int:
    """Join linears of one tensor whose weights have one format, where nothing reads their results
    that would rather be part of one of them: a quantize or an activation."""
    families: dict[Any, list[fx.Node]] = {}
    for node in each_call(graph, aten.linear):
        inputs = arguments(node)
        weight = _weight(graph, inputs["weight"])
        bias = inputs["bias"]
        if weight is None or not (bias is None or is_constant(bias)) or _ends_in_more(node):
            continue
        key = (inputs["input"], weight.operand.fmt, weight.operand.size, weight.dtype, bias is None)
        families.setdefault(key, []).append(node)
    count = 0
    for nodes in families.values():
        parts = _join(graph, nodes) if len(nodes) > 1 else None
        if parts is not None:
            _write(graph, nodes, parts)
            count += 1
    return count


def _weight(graph: fx.GraphModule, node: Any) -> Dequantize | None:
    """A weight of constants that nothing else reads."""
    result = dequantize_of(node)
    if result is None or len(node.users) != 1 or result.operand.more or len(shape(node) or ()) != 2:
        return None
    parts = [getattr(result.operand, name) for name in _PARTS]
    there = [part for part in parts if part is not None]
    own = all(is_constant(part) for part in there) and len(parts[0].users) == 1
    return result if own and all(get(graph, part).ndim == 2 for part in there) else None


def _ends_in_more(node: fx.Node) -> bool:
    return any(quantize_of(user) is not None or activation_of(user, node) for user in node.users)


def _join(graph: fx.GraphModule, nodes: Sequence[fx.Node]) -> dict[str, Tensor] | None:
    """The constants of one weight of all rows; None if blocks or scales of blocks do not allow."""
    operands = [_operand(node) for node in nodes]
    fmt = parse(operands[0].fmt)
    if fmt.block.flat or fmt.offset is not None or fmt.element.learned:
        return None
    heights = {"codes": 1, "scale": fmt.block.sizes_for(2)[0]}
    heights["zero_point"] = heights["scale"]
    if isinstance(fmt.scale, TwoLevel):
        if fmt.scale.inner.block.flat:
            return None
        heights["outer"] = fmt.scale.inner.block.sizes_for(2)[0]
        if heights["outer"] not in (1, WHOLE) or (heights["outer"] == heights["scale"] == WHOLE):
            return None
    by_name = {}
    for name, height in heights.items():
        if getattr(operands[0], name) is None:
            continue
        each = [get(graph, getattr(one, name)) for one in operands]
        rows = [get(graph, one.codes).shape[0] for one in operands]  # type: ignore[arg-type]
        whole = _together(each, rows, height)
        if whole is None:
            return None
        by_name[name] = whole
    return by_name


def _together(each: Sequence[Tensor], rows: Sequence[int], height: int) -> Tensor | None:
    """Scales of blocks of so many rows, one below the other."""
    if height == WHOLE:
        return each[0] if all(equal_bits(each[0], one) for one in each) else None
    if any(count % height for count in rows[:-1]):
        return None  # a block would reach from one weight into the next
    return torch.cat(list(each))


def _operand(node: fx.Node) -> Operand:
    result = dequantize_of(arguments(node)["weight"])
    assert result is not None
    return result.operand


def _write(graph: fx.GraphModule, nodes: Sequence[fx.Node], tensors: dict[str, Tensor]) -> None:
    first, inputs = nodes[0], arguments(nodes[0])
    layers = [layer_of(str(_operand(n).codes.target)) for n in nodes]  # type: ignore[attr-defined]
    operand, name = _operand(first), _name(layers)
    parts: Any = {
        part: put_constant(graph, f"{name}.weight.{part}", tensor, like=first)
        for part, tensor in tensors.items()
    }
    graph.meta.setdefault(MERGED, {})[str(parts["codes"].target)] = layers
    dtype = dequantize_of(inputs["weight"]).dtype  # type: ignore[union-attr]
    args = primitives.dequantize.flatten(operand._replace(**parts), dtype)
    dense = call(graph, ours.dequantize.default, args, like=first)
    bias = None
    if inputs["bias"] is not None:
        each = [get(graph, arguments(node)["bias"]) for node in nodes]
        bias = put_constant(
            graph, f"{name}.bias", torch.cat([one.detach() for one in each]), like=first
        )
    whole = call(graph, aten.linear.default, (inputs["input"], dense, bias), like=first)
    end, pieces = 0, []
    for node in nodes:
        start, end = end, end + (shape(node) or (0,))[-1]
        pieces.append(call(graph, aten.slice.Tensor, (whole, -1, start, end), like=first))
    for node, piece in zip(nodes, pieces, strict=True):
        replace(node, piece)
        views_to_reshapes(piece)


def layer_of(codes: str) -> str:
    """`attention.query` of `attention.query.weight.codes`."""
    return codes.removesuffix(".codes").removesuffix(".weight")


def _name(layers: Sequence[str]) -> str:
    """`attention.query_key_value` of `attention.query` and its likes."""
    folders = [layer.split(".")[:-1] for layer in layers]
    same = [names[0] for names in zip(*folders, strict=False) if len({*names}) == 1]
    inside = same if all(each[: len(same)] == same for each in folders) else folders[0]
    last = "_".join(layer.rpartition(".")[2] for layer in layers)
    return ".".join([*inside, last])
