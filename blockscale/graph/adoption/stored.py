# SPDX-License-Identifier: BSD-3-Clause
"""Weights of others' layers as ours store them: a matrix [outputs, inputs], channels last.

    conv(x, dq(codes [o, i, *kernel]))  ->  conv(x, contiguous(permute(view(dq(codes [o, k])))))
    addmm(b, x, dq(codes [k, o]))       ->  addmm(b, x, contiguous(t(dq(codes [o, k]))))

So they are what `fuse` and every file of ours know. The values and their places stay.
"""

from typing import Any

from torch import Tensor, fx

from blockscale.core.block import WHOLE, read_block
from blockscale.core.layout import from_stored, grouped_layout, to_stored
from blockscale.core.operand import Operand
from blockscale.core.parse import parse
from blockscale.graph import constants
from blockscale.graph.nodes import (
    arguments,
    aten,
    call,
    calls,
    dequantize_of,
    each_call,
    inlined,
    ours,
    shape,
)
from blockscale.graph.passes.moves.parts import of_block
from blockscale.ops import primitives

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
        turned = calls(node, *_TRANSPOSED) or bool(own.get("transposed"))
        layout, weight = "transposed", own.get("mat2")
        if weight is None:
            weight = own["weight"]
            layout = grouped_layout(own["groups"]) if turned else "channels_last"
        if (weight, layout) not in there:
            made = _stored(graph, weight, layout, own.get("groups", 1))
            if made is None:
                continue
            there[weight, layout] = made
        node.replace_input_with(weight, there[weight, layout])
        count += 1
    return count


def _stored(graph: fx.GraphModule, weight: Any, layout: str, groups: int) -> fx.Node | None:
    """The weight made of a stored matrix; None where its scales are not those of outputs."""
    found, sizes = dequantize_of(weight), shape(weight)
    if found is None or sizes is None or len(sizes) < 2 or not _whole(found.coded):
        return None
    fmt = parse(found.coded.fmt)
    outputs = 0 if layout == "channels_last" else 1
    blocks = fmt.block.sizes_for(len(sizes))
    one = all(block == WHOLE for block in blocks)
    by_output = all((block == WHOLE) != (i == outputs) for i, block in enumerate(blocks))
    if not (one or (by_output and blocks[outputs] == 1)):
        return None
    spelled = found.coded.fmt if one else of_block(fmt, read_block("channel0"))
    read: Any = found.coded
    dense = ours.unpack(constants.get(graph, read.codes), read.fmt, sizes[-1])
    matrix = to_stored(dense, layout).contiguous()
    codes = ours.pack(matrix, spelled)

    def part(node: Any) -> Any:
        if node is None:
            return None
        values = constants.get(graph, node).reshape(-1, 1)
        values = values if one or not outputs else values.repeat(groups, 1)
        return _kept(graph, node, values)

    scale, zero = part(read.scale), part(read.zero_point)
    kept: Any = _kept(graph, read.codes, codes)
    coded = Operand(kept, scale, zero, None, spelled, matrix.shape[-1])
    args = primitives.dequantize.flatten(coded, found.dtype)
    values = call(graph, ours.dequantize.default, args, like=weight)
    made = inlined(graph, lambda y: from_stored(y, layout, sizes), values, weight)
    return call(graph, aten.contiguous.default, (made,), like=weight)


def _whole(coded: Operand) -> bool:
    """Whether all that the codes need are constants: a scale, and perhaps a zero point."""
    parts = [each for each in (coded.codes, coded.scale, coded.zero_point) if each is not None]
    return all(map(constants.is_constant, parts)) and coded.outer is None and not coded.more


def _kept(graph: fx.GraphModule, like: fx.Node, tensor: Tensor) -> fx.Node:
    node = constants.put(graph, "_stored", tensor.contiguous(), like=like)
    node.meta[WANTED] = like.meta.get(WANTED, str(like.target))
    return node
