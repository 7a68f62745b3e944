# SPDX-License-Identifier: BSD-3-Clause
"""Ops that only move elements, on integers as on floats, and where moved sums become codes."""

import operator
from typing import Any, NamedTuple

from torch import fx

from blockscale.core.operand import Quantizer
from blockscale.graph.nodes import aten, calls, quantize_of, shape, value

MOVES = (
    *(aten.view, aten.reshape, aten._unsafe_view, aten.flatten, aten.unflatten, aten.transpose),
    *(aten.permute, aten.t, aten.slice, aten.select, aten.unsqueeze, aten.squeeze),
    *(aten.expand, aten.contiguous, aten.clone, aten.split, aten.split_with_sizes, aten.chunk),
    *(aten.repeat, aten.flip, aten.roll, aten.alias, aten.detach, aten.index_select),
    *(aten.unbind, aten.pixel_shuffle, aten.pixel_unshuffle, operator.getitem),
)

_CUTS = (aten.chunk, aten.split, aten.split_with_sizes)


class Piece(NamedTuple):
    """Columns [first, last) of a product's sums, which `node` gives, and how they are quantized
    behind further moves."""

    node: fx.Node
    first: int
    last: int
    by: Quantizer


def pieces(sums: fx.Node) -> list[Piece]:
    """The pieces of the floats that a node gives, where each becomes codes of one scale and nothing
    else reads them: then codes can be moved in the place of sums. [] otherwise."""
    sizes = shape(sums)
    if not sizes or not isinstance(sizes[-1], int):
        return []
    by = _quantized_behind(sums)
    if by is not None:
        return [Piece(sums, 0, sizes[-1], by)]
    first_user = next(iter(sums.users), None)
    if len(sums.users) == 1 and calls(first_user, *_CUTS):
        candidates = _pieces_of_cut(first_user, len(sizes))  # type: ignore[arg-type]
    else:
        candidates = [_piece(user, len(sizes), sizes[-1]) for user in sums.users]
    whole = [each for each in candidates if each is not None]
    return whole if len(whole) == len(candidates) else []


def _pieces_of_cut(node: fx.Node, rank: int) -> list[Piece | None]:
    """The parts of a chunk or split along the last dimension."""
    dim: Any = node.args[2] if len(node.args) > 2 else node.kwargs.get("dim", 0)
    ends = [0]
    for each in value(node) or ():
        ends.append(ends[-1] + each.shape[-1])
    if dim % rank != rank - 1 or not all(isinstance(end, int) for end in ends):
        return [None]
    parts: list[Piece | None] = []
    for user in node.users:
        at: Any = user.args[1] if calls(user, operator.getitem) else None
        by = None if at is None else _quantized_behind(user)
        parts.append(None if by is None else Piece(user, ends[at], ends[at + 1], by))
    return parts


def _piece(node: fx.Node, rank: int, size: int) -> Piece | None:
    """Columns that a slice takes, in steps of 1."""
    if not calls(node, aten.slice):
        return None
    args: list[Any] = [*node.args, *[None] * (5 - len(node.args))]
    dim, first, last, step = args[1:5]
    by = _quantized_behind(node)
    if (dim or 0) % rank != rank - 1 or step not in (None, 1) or by is None or node.kwargs:
        return None
    begin, end = 0 if first is None else first, size if last is None else min(last, size)
    whole = isinstance(begin, int) and begin >= 0 and isinstance(end, int) and end >= 0
    return Piece(node, begin, end, by) if whole else None


def _quantized_behind(node: fx.Node) -> Quantizer | None:
    """How the only readers of a node quantize it, behind moves that keep all of it."""
    quantizers = []
    for user in node.users:
        quantized = quantize_of(user)
        if quantized is not None and quantized.x is node and quantized.by.fmt:
            quantizers.append(quantized.by)
        elif calls(user, *MOVES) and not calls(user, aten.slice, aten.select, operator.getitem):
            by = _quantized_behind(user)
            if by is None:
                return None
            quantizers.append(by)
        else:
            return None
    return quantizers[0] if len(quantizers) == 1 else None
