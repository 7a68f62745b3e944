# SPDX-License-Identifier: BSD-3-Clause
"""Slices, selections, picked places and expansions of codes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from blockscale.core.block import WHOLE
from blockscale.core.operand import Operand
from blockscale.core.pack import packed_size
from blockscale.core.parse import parse
from blockscale.graph.constants import get, is_constant, same
from blockscale.graph.nodes import arguments, aten, call, is_known, shape
from blockscale.graph.passes.moved_blocks import (
    block_of,
    change_parts,
    dim_of,
    of_block,
    outer_of_rank,
    row_of,
)
from blockscale.ops import primitives

# Joining and padding of codes.


def join_codes(graph: fx.GraphModule, node: fx.Node, each: Sequence[Operand]) -> Operand | None:
    """What aten.cat makes of codes; None if the formats differ, a block would reach over a seam, or
    one scale would have to be two."""
    first, sizes = each[0], shape(node)
    if sizes is None or any(one.fmt != first.fmt for one in each):
        return None
    fmt, rank = parse(first.fmt), len(sizes)
    dim = int(arguments(node)["dim"] or 0) % rank
    along = fmt.block.sizes_for(rank)[dim]
    inputs = [shape(one) or () for one in node.args[0]]  # type: ignore[union-attr]
    if dim == rank - 1 and fmt.bits not in (8, 16):
        rows = [own[-1] for own in inputs[:-1]]
        if not all(isinstance(n, int) and n * fmt.bits % 8 == 0 for n in rows):
            return None
    if along not in (1, WHOLE) and not all(is_known(own[dim] % along == 0) for own in inputs[:-1]):
        return None
    if not all(same(graph, one.outer, first.outer) for one in each):  # type: ignore[arg-type]
        return None

    def together(parts: Sequence[Any]) -> Any:
        return call(graph, aten.cat.default, (list(parts), dim), like=node)

    row = row_of(node, inputs[0], first.size)
    if row is None:
        row = call(graph, aten.sym_size.int, (node, rank - 1), like=node.next)
    if along == WHOLE:
        if not all(_same_scales(graph, one, first) for one in each):
            return None
        return first._replace(codes=together([one.codes for one in each]), size=row)
    zero = first.zero_point and together([one.zero_point for one in each])
    return first._replace(
        codes=together([one.codes for one in each]),
        scale=together([one.scale for one in each]),
        zero_point=zero,
        size=row,
    )


def _same_scales(graph: fx.GraphModule, a: Operand, b: Operand) -> bool:
    pairs = ((a.scale, b.scale), (a.zero_point, b.zero_point))
    return all(same(graph, x, y) for x, y in pairs)  # type: ignore[arg-type]


def pad_codes(graph: fx.GraphModule, node: fx.Node, operand: Operand) -> Operand | None:
    """What padding with zeros makes of codes that have one scale, a constant: more codes of 0."""
    fmt, inputs = parse(operand.fmt), arguments(node)
    zero = _zero_code(graph, operand) if inputs["value"] in (None, 0) else None
    pad = inputs["pad"]
    if inputs.get("mode", "constant") != "constant" or zero is None:
        return None
    if fmt.block.name != "tensor" or not all(isinstance(n, int) for n in pad):
        return None
    if fmt.bits not in (8, 16) and (any(pad[:2]) or zero):
        return None
    row = row_of(node, shape(node.args[0]) or (), operand.size)
    args = (operand.codes, list(pad), zero)
    codes: Any = call(graph, aten.constant_pad_nd.default, args, like=node)
    return None if row is None else operand._replace(codes=codes, size=row)


def _zero_code(graph: fx.GraphModule, operand: Operand) -> int | None:
    """The code whose value is 0 and not -0, if the scale is known and there is one."""
    parts = (operand.scale, operand.zero_point, operand.outer)
    if operand.outer is not None or not all(p is None or is_constant(p) for p in parts):
        return None
    scale, zero, _ = (None if p is None else get(graph, p).reshape(1) for p in parts)  # type: ignore[arg-type]
    by = (scale, zero, None, operand.fmt)
    codes = torch.ops.blockscale.quantize.default(torch.zeros(1), *by)
    if parse(operand.fmt).bits not in (8, 16):
        return 0 if int(codes[0]) == 0 and _is_zero(codes, scale, zero, operand.fmt) else None
    return int(codes[0]) if _is_zero(codes, scale, zero, operand.fmt) else None


def _is_zero(codes: torch.Tensor, scale: Any, zero: Any, fmt: str) -> bool:
    value = primitives.dequantize.reference(
        Operand(codes, scale, zero, None, fmt, 1), torch.float32
    )
    return bool((value == 0).all() and not value.signbit().any())


def select_codes(
    graph: fx.GraphModule, node: fx.Node, operand: Operand, sizes: Sequence[int]
) -> Operand | None:
    """One place along a dimension, which goes. None where blocks do not allow."""
    old, fmt = shape(node.args[0]), parse(operand.fmt)
    assert old is not None
    dim, index = dim_of(node, old), arguments(node)["index"]
    size = sizes[dim]
    if dim == len(old) - 1 or len(old) < 2:
        return None
    if size not in (1, WHOLE):
        if not isinstance(index, int) or not isinstance(old[dim], int):
            return None
        at: Any = index % old[dim] // size
    else:
        at = index if size == 1 else 0
    after = [*sizes[:dim], *sizes[dim + 1 :]]

    def change(part: Any) -> Any:
        return call(graph, aten.select.int, (part, dim, at), like=node)

    result = change_parts(operand, change, of_block(fmt, block_of(after, fmt.block)), operand.size)
    codes: Any = call(graph, aten.select.int, (operand.codes, dim, index), like=node)
    return outer_of_rank(graph, result._replace(codes=codes), len(after), node)


def slice_codes(
    graph: fx.GraphModule, node: fx.Node, operand: Operand, sizes: Sequence[int]
) -> Operand | None:
    """A part of a dimension, between blocks. None where blocks do not allow."""
    old, inputs = shape(node.args[0]), arguments(node)
    assert old is not None
    dim = dim_of(node, old)
    size, start, end, step = sizes[dim], inputs["start"] or 0, inputs["end"], inputs["step"]
    row = row_of(node, old, operand.size)
    if row is None:
        return None
    bounds: Any = (start, end, step)
    if size not in (1, WHOLE):
        bounds = _block_bounds(size, old[dim], start, end, step)
        if bounds is None:
            return None

    def change(part: Any) -> Any:
        if size == WHOLE:
            return part
        return call(graph, aten.slice.Tensor, (part, dim, *bounds), like=node)

    result = change_parts(operand, change, operand.fmt, row)
    codes: Any = call(graph, aten.slice.Tensor, (operand.codes, dim, start, end, step), like=node)
    return result._replace(codes=codes)


def pick_codes(
    graph: fx.GraphModule, node: fx.Node, operand: Operand, sizes: Sequence[int]
) -> Operand | None:
    """Places along a dimension, by index. None where several of them share a scale."""
    old, index = shape(node.args[0]), arguments(node)["index"]
    assert old is not None
    dim = dim_of(node, old)
    row = row_of(node, old, operand.size)
    if sizes[dim] not in (1, WHOLE) or row is None:
        return None

    def change(part: Any) -> Any:
        if sizes[dim] == WHOLE:
            return part
        return call(graph, aten.index_select.default, (part, dim, index), like=node)

    result = change_parts(operand, change, operand.fmt, row)
    codes: Any = call(graph, aten.index_select.default, (operand.codes, dim, index), like=node)
    return result._replace(codes=codes)


def _block_bounds(
    size: int, n: Any, start: Any, end: Any, step: int
) -> tuple[int, int, int] | None:
    """The same bounds, counted in blocks; None if they are not between blocks."""
    if step != 1 or not isinstance(n, int):
        return None
    if not isinstance(start, int) or not (end is None or isinstance(end, int)):
        return None
    first, last, _ = slice(start, end).indices(n)
    if first % size or (last % size and last != n):
        return None
    return first // size, (last + size - 1) // size, 1


def expand_codes(
    graph: fx.GraphModule, node: fx.Node, operand: Operand, sizes: Sequence[int]
) -> Operand | None:
    """Dimensions of one element, seen as if they had more. None where blocks do not allow."""
    old, new, fmt = shape(node.args[0]), shape(node), parse(operand.fmt)
    assert old is not None and new is not None
    if not is_known(old[-1] == new[-1]) or len(old) != len(new):
        return None
    grows = [not is_known(a == b) for a, b in zip(old, new, strict=True)]
    if any(g and not is_known(n == 1) for g, n in zip(grows, old, strict=True)):
        return None
    after = [WHOLE if g else size for g, size in zip(grows, sizes, strict=True)]
    to = list(arguments(node)["size"])
    result = operand._replace(fmt=of_block(fmt, block_of(after, fmt.block)))
    last = packed_size(fmt.element, new[-1]) if isinstance(new[-1], int) else to[-1]
    codes: Any = call(graph, aten.expand.default, (operand.codes, [*to[:-1], last]), like=node)
    return result._replace(codes=codes)
