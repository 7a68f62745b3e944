# SPDX-License-Identifier: BSD-3-Clause
"""What an op that only moves elements makes of codes and the scales beside them."""

from collections.abc import Sequence
from typing import Any

from torch import fx

from blockscale.core.format import Format
from blockscale.core.operand import Operand
from blockscale.core.parse import parse
from blockscale.core.scales import TwoLevel
from blockscale.graph.nodes import aten, call, calls, known, shape
from blockscale.graph.passes.channels_last import permutation
from blockscale.graph.passes.moves.cuts import expanded, picked, selected, sliced
from blockscale.graph.passes.moves.onto import permuted, viewed
from blockscale.graph.passes.moves.parts import dim_of, of_rank

VIEWS = (
    *(aten.view, aten.reshape, aten._unsafe_view, aten.flatten, aten.unflatten),
    *(aten.squeeze, aten.unsqueeze),
)
PERMUTES = (aten.permute, aten.transpose, aten.t)
ONTO = (*VIEWS, *PERMUTES, aten.contiguous)  # each element goes to one place
MOVES = (*ONTO, aten.slice, aten.select, aten.index_select, aten.expand)


def moved(graph: fx.GraphModule, node: fx.Node, coded: Operand) -> Operand | None:
    """What `node`, one of MOVES, makes of its input, given as codes and scales of nodes: the same
    as codes and scales; None where no block says it, or rows of packed codes would be cut within a
    byte. New nodes are put before `node`."""
    fmt, old, new = parse(coded.fmt), shape(node.args[0]), shape(node)
    if old is None or new is None or not old or not new or not _simple(fmt, coded):
        return None
    sizes = fmt.block.sizes_for(len(old))
    if fmt.block.name == "tensor":
        coded = of_rank(graph, coded, len(old), node)
    if len(shape(coded.scale) or ()) != len(old):
        return None
    if calls(node, aten.contiguous):
        codes: Any = call(graph, aten.contiguous.default, (coded.codes,), like=node)
        return coded._replace(codes=codes)
    if not _rows_stay(fmt, node, old, new):
        return None
    ways = (
        *((PERMUTES, permuted), (VIEWS, viewed), ((aten.select,), selected)),
        *(((aten.slice,), sliced), ((aten.index_select,), picked), ((aten.expand,), expanded)),
    )
    way = next((way for ops, way in ways if calls(node, *ops)), None)
    return None if way is None else way(graph, node, coded, sizes)


def _simple(fmt: Format, coded: Operand) -> bool:
    """Whether all that stands beside the codes is by block, or one for all."""
    if fmt.block.flat or coded.more or fmt.offset is not None or fmt.element.learned:
        return False
    outer = shape(coded.outer)
    one = outer is not None and all(known(n == 1) for n in outer)
    return not isinstance(fmt.scale, TwoLevel) or (one and fmt.scale.inner.block.name == "tensor")


def _rows_stay(fmt: Format, node: fx.Node, old: Sequence[Any], new: Sequence[Any]) -> bool:
    """Whether rows of packed codes stay whole, or are cut and joined at whole bytes."""
    if fmt.bits in (8, 16):
        return True
    if calls(node, *PERMUTES):
        order = permutation(node)
        return order is not None and order[-1] == len(order) - 1
    if calls(node, *VIEWS):
        if known(old[-1] == new[-1]) and len(old) > 1 and len(new) > 1:
            return True
        return all(isinstance(n, int) and n * fmt.bits % 8 == 0 for n in (old[-1], new[-1]))
    dim = dim_of(node, old)
    return calls(node, aten.slice, aten.select, aten.index_select) and dim != len(old) - 1
