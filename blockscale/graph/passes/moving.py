# SPDX-License-Identifier: BSD-3-Clause
"""Ops that only move elements work on codes, before they are dequantized.

    view(dq(codes, scale))  ->  dq(view(codes), view(scale))

So codes travel, which are smaller, and meet the op that reads them or the quantize that they cancel
with. It is done where a block says what the scales are of afterwards; elsewhere the floats move.
Weights stay as they are stored.
"""

from collections.abc import Sequence
from typing import Any

from torch import fx

from blockscale.core.block import WHOLE
from blockscale.core.format import Format
from blockscale.core.operand import Operand
from blockscale.core.pack import packed_size
from blockscale.core.parse import parse
from blockscale.core.scales import TwoLevel
from blockscale.graph.constants import is_constant
from blockscale.graph.nodes import (
    Dequantize,
    aten,
    call,
    calls,
    dequantize_of,
    each_call,
    is_known,
    ours,
    quantize_of,
    replace,
    shape,
)
from blockscale.graph.passes.channels_last import permutation
from blockscale.graph.passes.fused import match_fused
from blockscale.graph.passes.moved_blocks import (
    PIECES,
    block_of,
    change_parts,
    counts,
    cut_pieces,
    dim_of,
    of_block,
    of_rank,
    outer_of_rank,
    row_of,
    through_view,
)
from blockscale.graph.passes.moved_cuts import (
    expand_codes,
    join_codes,
    pad_codes,
    pick_codes,
    select_codes,
    slice_codes,
)
from blockscale.graph.passes.moved_elements import COPIES, INDEXED, SHUFFLES, scatter_codes
from blockscale.ops import primitives

# What an op that only moves elements makes of codes and the scales beside them.


def permute_codes(
    graph: fx.GraphModule, node: fx.Node, operand: Operand, sizes: Sequence[int]
) -> Operand | None:
    """Dimensions in another order."""
    order, old = permutation(node), shape(node.args[0])
    if order is None or old is None:
        return None
    after = [sizes[i] for i in order]
    row = row_of(node, old, operand.size)
    if row is None:
        row = call(graph, aten.sym_size.int, (node.args[0], order[-1]), like=node)

    fmt = parse(operand.fmt)

    def change(part: Any) -> Any:
        return call(graph, aten.permute.default, (part, order), like=node)

    one = fmt.block.name == "tensor"
    new_fmt = of_block(fmt, block_of(after, fmt.block))
    result = change_parts(operand, (lambda part: part) if one else change, new_fmt, row)
    codes: Any = change(operand.codes)
    return result._replace(codes=codes)


def view_codes(
    graph: fx.GraphModule, node: fx.Node, operand: Operand, sizes: Sequence[int]
) -> Operand | None:
    """The same elements in another shape; None where no block says whose scales they are."""
    old, new, fmt = shape(node.args[0]), shape(node), parse(operand.fmt)
    assert old is not None and new is not None
    after = through_view(sizes, old, new, WHOLE if fmt.block.rest == WHOLE else 1)
    to = target_sizes(graph, node)
    if after is None or to is None:
        return None
    scales = _scale_sizes(after, new, to)
    row = row_of(node, old, operand.size)
    if scales is None or row is None:
        return None
    if fmt.bits not in (8, 16):
        if not isinstance(row, int):
            return None
        to = [*to[:-1], packed_size(fmt.element, row)]

    def view(part: Any, sizes: list[Any]) -> Any:
        if fmt.block.name == "tensor" and sizes is scales and len(old) == len(new):
            return part
        return call(graph, aten.reshape.default, (part, sizes), like=node)

    new_fmt = of_block(fmt, block_of(after, fmt.block))
    result = change_parts(operand, lambda part: view(part, scales), new_fmt, row)
    codes: Any = view(operand.codes, to)
    return outer_of_rank(graph, result._replace(codes=codes), len(new), node)


def _scale_sizes(after: Sequence[int], new: Sequence[Any], to: list[Any]) -> list[Any] | None:
    """The sizes of scales as arguments of a view."""
    results: list[Any] = []
    for size, count, inputs in zip(after, counts(after, new), to, strict=True):
        if size not in (1, WHOLE) and not isinstance(count, int):
            return None
        results.append(inputs if size == 1 else count)
    return results


def target_sizes(graph: fx.GraphModule, node: fx.Node) -> list[Any] | None:
    """The sizes of a view's result as arguments: numbers, nodes, and at most one -1."""
    new = shape(node)
    assert new is not None
    if calls(node, aten.view, aten.reshape, aten._unsafe_view):
        results = list(node.args[1])  # type: ignore[arg-type]
        return [n if isinstance(n, int) else g for n, g in zip(new, results, strict=True)]
    symbols = [n for n in new if not isinstance(n, int)]
    if len(symbols) <= 1:
        return [n if isinstance(n, int) else -1 for n in new]
    old = shape(node.args[0]) or ()
    members: list[Any] = []
    for n in new:
        same = [i for i, m in enumerate(old) if not isinstance(n, int) and is_known(n == m)]
        if isinstance(n, int):
            members.append(n)
        elif same:
            members.append(call(graph, aten.sym_size.int, (node.args[0], same[0]), like=node))
        else:
            members.append(-1)
    return members if members.count(-1) <= 1 else None


VIEWS = (
    *(aten.view, aten.reshape, aten._unsafe_view, aten.flatten, aten.unflatten),
    *(aten.squeeze, aten.unsqueeze),
)
PERMUTES = (aten.permute, aten.transpose, aten.t)
# Those before which a quantize by one scale may stand as well: codes are moved in place of floats.
BEFORE = (
    *(*VIEWS, *PERMUTES, aten.contiguous, *SHUFFLES),
    *(aten.index_select, *INDEXED, *COPIES),
)
MOVES = (*BEFORE, aten.slice, aten.select, aten.expand)


def move_codes(graph: fx.GraphModule, node: fx.Node, operand: Operand) -> Operand | None:
    """What `node`, one of MOVES, makes of its input, given as codes and scales of nodes: the same
    as codes and scales; None where no block says it, or rows of packed codes would be cut within a
    byte. New nodes are put before `node`."""
    fmt, old, new = parse(operand.fmt), shape(node.args[0]), shape(node)
    if old is None or new is None or not old or not new or not _simple(fmt, operand):
        return None
    sizes = fmt.block.sizes_for(len(old))
    if fmt.block.name == "tensor":
        operand = of_rank(graph, operand, len(old), node)
    if len(shape(operand.scale) or ()) != len(old):
        return None
    if calls(node, aten.contiguous):
        codes: Any = call(graph, aten.contiguous.default, (operand.codes,), like=node)
        return operand._replace(codes=codes)
    if not _rows_stay(fmt, node, old, new):
        return None
    ways = (
        *((PERMUTES, permute_codes), (VIEWS, view_codes), ((aten.select,), select_codes)),
        *(
            ((aten.slice,), slice_codes),
            ((aten.index_select,), pick_codes),
            ((aten.expand,), expand_codes),
        ),
        ((*SHUFFLES, *INDEXED, *COPIES), scatter_codes),
    )
    way = next((way for ops, way in ways if calls(node, *ops)), None)
    return None if way is None else way(graph, node, operand, sizes)


def _simple(fmt: Format, operand: Operand) -> bool:
    """Whether all that stands beside the codes is by block, or one for all."""
    if fmt.block.flat or operand.more or fmt.offset is not None or fmt.element.learned:
        return False
    outer = shape(operand.outer)
    one = outer is not None and all(is_known(n == 1) for n in outer)
    return not isinstance(fmt.scale, TwoLevel) or (one and fmt.scale.inner.block.name == "tensor")


def _rows_stay(fmt: Format, node: fx.Node, old: Sequence[Any], new: Sequence[Any]) -> bool:
    """Whether rows of packed codes stay whole, or are cut and joined at whole bytes."""
    if fmt.bits in (8, 16):
        return True
    if calls(node, *PERMUTES):
        order = permutation(node)
        return order is not None and order[-1] == len(order) - 1
    if calls(node, *VIEWS):
        if is_known(old[-1] == new[-1]) and len(old) > 1 and len(new) > 1:
            return True
        return all(isinstance(n, int) and n * fmt.bits % 8 == 0 for n in (old[-1], new[-1]))
    dim = dim_of(node, old)
    return calls(node, aten.slice, aten.select, aten.index_select) and dim != len(old) - 1


_JOINS = (aten.cat, aten.concat, aten.concatenate)
_PADS = (aten.constant_pad_nd, aten.pad)


# The pass.


def run(graph: fx.GraphModule) -> int:
    """Move codes in the place of floats. Equal to the bit."""
    count = sum(
        _movable(node.args[0]) is not None and cut_pieces(graph, node)
        for node in each_call(graph, *PIECES)
    )
    for node in each_call(graph, *MOVES, *_JOINS, *_PADS):
        if not node.users:
            continue
        sources = node.args[0] if calls(node, *_JOINS) else [node.args[0]]
        results = [_movable(each) for each in sources]  # type: ignore[union-attr]
        if not results or None in results:
            continue
        whole = [each for each in results if each is not None]
        if len({each.dtype for each in whole}) > 1:
            continue
        operand = _after(graph, node, [each.operand for each in whole])
        if operand is not None:
            args = primitives.dequantize.flatten(operand, whole[0].dtype)
            replace(node, call(graph, ours.dequantize.default, args, like=node))
            count += 1
    return count


def _movable(node: object) -> Dequantize | None:
    """Codes that are computed, dequantized by the node."""
    result = dequantize_of(node)
    return None if result is None or is_constant(result.operand.codes) else result


def _after(graph: fx.GraphModule, node: fx.Node, each: list[Operand]) -> Operand | None:
    if calls(node, *_JOINS):
        return join_codes(graph, node, each)
    if calls(node, *_PADS):
        return pad_codes(graph, node, each[0])
    if calls(node, aten.expand, *COPIES) and not all(_reads_codes(user) for user in node.users):
        return None  # more would be dequantized than before
    return move_codes(graph, node, each[0])


def _reads_codes(user: fx.Node) -> bool:
    return match_fused(user) is not None or quantize_of(user) is not None or calls(user, *MOVES)
