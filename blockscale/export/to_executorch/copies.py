# SPDX-License-Identifier: BSD-3-Clause
"""Copies that XNNPACK does not need: permutes around quantizers that see no order of dimensions."""

from typing import Any

import torch
from torch import fx

from blockscale.core.format import Format
from blockscale.core.scale import FloatScale, PowerOfTwo
from blockscale.graph.nodes import (
    aten,
    call,
    calls,
    dequantize_of,
    each_call,
    quantize_of,
    replace,
    set_value,
    shape,
)


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
        dims = _moved(len(shape(source) or ()), *node.args[1:3])
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
    quantized = None if inner is None else quantize_of(inner.coded.codes)
    if inner is None or quantized is None or not per_tensor(inner.coded.format):
        return False
    codes: Any = inner.coded.codes
    before: Any = quantized.x
    alone = len(codes.users) == len(source.users) == 1
    if not (alone and calls(before, aten.permute) and _undo(before.args[1], node.args[1])):
        return False
    last = (shape(before.args[0]) or (None,))[-1]
    if not isinstance(last, int):
        return False
    codes.replace_input_with(before, before.args[0])
    _set_size(source, last)
    for changed in (codes, source):
        changed.meta.pop("val", None)
        set_value(changed)
    replace(node, source)
    return True


def _set_size(node: fx.Node, size: int) -> None:
    """Tell a dequantize node how many codes a row has."""
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    at = names.index("size")
    if at < len(node.args):
        node.update_arg(at, size)
    else:
        node.update_kwarg("size", size)


def _undo(first: Any, second: Any) -> bool:
    return [first[i] for i in second] == list(range(len(first)))


def _moved(rank: int, source: Any, target: Any) -> list[int]:
    """The dimensions of movedim as permute takes them."""
    sizes = torch.empty(tuple(range(2, 2 + rank)), device="meta").movedim(source, target).shape
    return [size - 2 for size in sizes]
