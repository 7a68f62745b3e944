# SPDX-License-Identifier: BSD-3-Clause
"""Ops that put single elements elsewhere, or several times: of codes, where one scale is for all.

    pixel_shuffle(dq(codes, scale))   ->  dq(pixel_shuffle(codes), scale)
    upsample_nearest(dq(codes, s))    ->  dq(index_select(codes, ...), s)

A flip, or a roll along named dimensions, moves scales by row or channel too.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from blockscale.core.block import WHOLE
from blockscale.core.operand import Operand
from blockscale.core.parse import parse
from blockscale.graph import constants
from blockscale.graph.nodes import arguments, aten, call, calls, shape, value
from blockscale.graph.passes.fused import dtype_of
from blockscale.graph.passes.moved_blocks import change_parts, of_rank, row_of

_ALONG = (aten.flip, aten.roll)
SHUFFLES = (  # each element goes to one place
    *(*_ALONG, aten.fliplr, aten.flipud, aten.rot90, aten.pixel_shuffle, aten.pixel_unshuffle),
    *(aten.channel_shuffle, aten.native_channel_shuffle),
)
INDEXED = (aten.index, aten._unsafe_index)
UPSAMPLES = tuple(
    getattr(aten, name.format(n))
    for name in ("upsample_nearest{}d", "_upsample_nearest_exact{}d")
    for n in (1, 2, 3)
)
COPIES = (aten.repeat, aten.tile, aten.repeat_interleave, *UPSAMPLES)  # to several places


def scatter_codes(
    graph: fx.GraphModule, node: fx.Node, operand: Operand, sizes: Sequence[int]
) -> Operand | None:
    """What one of SHUFFLES, INDEXED or COPIES makes of codes; None where a block would have
    more than one scale, or the places are not known."""
    fmt, old = parse(operand.fmt), shape(node.args[0])
    assert old is not None
    if _masks(node):
        return None
    if fmt.block.name != "tensor":
        return _along(graph, node, operand, sizes)
    codes: Any = (
        _upsample(graph, node, operand.codes)
        if calls(node, *UPSAMPLES)
        else _same(graph, node, operand.codes)
    )
    if codes is None:
        return None
    row = row_of(node, old, operand.size)
    if row is None:
        row = call(graph, aten.sym_size.int, (codes, -1), like=node)
    return of_rank(graph, operand._replace(codes=codes, size=row), len(shape(node) or ()), node)


def _masks(node: fx.Node) -> bool:
    """Whether it picks by a mask, whose count only data tell."""
    index = node.args[1] if calls(node, *INDEXED) else []
    return any(each is not None and dtype_of(each) == torch.bool for each in index)  # type: ignore[union-attr]


def _same(graph: fx.GraphModule, node: fx.Node, tensor: Any) -> fx.Node:
    """What the node computes, of another tensor."""
    return call(graph, node.target, (tensor, *node.args[1:]), node.kwargs, like=node)  # type: ignore[arg-type]


def _along(
    graph: fx.GraphModule, node: fx.Node, operand: Operand, sizes: Sequence[int]
) -> Operand | None:
    """A flip or a roll along dimensions whose elements share one scale, or have one each."""
    if not calls(node, *_ALONG):
        return None
    dims = arguments(node)["dims"]
    if not dims or any(sizes[dim] not in (1, WHOLE) for dim in dims):
        return None
    result = change_parts(operand, lambda part: _same(graph, node, part), operand.fmt, operand.size)
    codes: Any = _same(graph, node, operand.codes)
    return result._replace(codes=codes)


def _upsample(graph: fx.GraphModule, node: fx.Node, codes: Any) -> fx.Node | None:
    """The nearest pixels by their places along each dimension, channels last, as convolutions read
    them: torch upsamples no int8. None for sizes that are symbols."""
    old = shape(node.args[0])
    assert old is not None
    if len(node.all_input_nodes) > 1 or not all(isinstance(n, int) for n in old[2:]):
        return None
    rank = len(old)
    codes = call(graph, aten.permute.default, (codes, [0, *range(2, rank), 1]), like=node)
    for i, places in enumerate(_places(node, old[2:])):
        name = f"{node.name}.places{i}"
        at = constants.put_constant(graph, name, places, like=node)
        codes = call(graph, aten.index_select.default, (codes, i + 1, at), like=node)
    return call(graph, aten.permute.default, (codes, [0, rank - 1, *range(1, rank - 1)]), like=node)


def _places(node: fx.Node, sizes: Sequence[int]) -> list[torch.Tensor]:
    """Which pixel each pixel of the result is, along each dimension: as the op itself says."""
    target: Any = node.target
    like = value(node)
    exact = torch.float64 if like.dtype == torch.float64 else torch.float32
    results = []
    for dim, size in enumerate(sizes):
        line = torch.arange(size, dtype=exact).reshape(
            [size if i == dim else 1 for i in range(len(sizes))]
        )
        output = target(line.expand(1, 1, *sizes).contiguous(), *node.args[1:], **node.kwargs)
        first = [slice(None) if i == dim else 0 for i in range(len(sizes))]
        results.append(output[0, 0][tuple(first)].to(like.device, torch.int64))
    return results
