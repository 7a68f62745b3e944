# SPDX-License-Identifier: BSD-3-Clause
"""A graph of torch's and our ops with a mark in the place of each part that quantizes.

torch's own exporter translates the float ops. It sees a mark, `blockscale.export::Placed` with a
number, where a weight is dequantized, rows of a table are looked up, or an activation goes through
a format; what stands there is written by `write.py` afterwards.
"""

import operator
from typing import Any

import torch
from torch import fx

from blockscale.core.operand import Operand, Quantizer
from blockscale.export.to_onnx import activation
from blockscale.export.to_onnx.pieces import Activation, Piece, Rows, Weight, placed, placed_like
from blockscale.export.to_onnx.weight import Move
from blockscale.graph.constants import get, is_constant
from blockscale.graph.nodes import (
    aten,
    bound,
    call,
    calls,
    dequantize_of,
    described,
    each_call,
    ours,
    quantize_of,
    replace,
    scope,
    shape,
    value,
)
from blockscale.ops.embedding import embedding


def take(graph: fx.GraphModule) -> list[Piece]:
    """Put marks into a converted graph, in place; what each stands for, in the order of numbers.

    Raises ValueError that names the first node that a file cannot hold.
    """
    pieces: list[Piece] = []
    for node in each_call(graph, ours.dequantize):
        _take_dequantize(graph, node, pieces)
    for node in each_call(graph, ours.embedding):
        _take_rows(graph, node, pieces)
    graph.graph.eliminate_dead_code()
    for node in graph.graph.nodes:
        name = str(node.target)
        if node.op == "call_function" and name.startswith("blockscale."):
            raise ValueError(
                f"{described(node)}: an ONNX file cannot hold {name}: pass the result of "
                "bs.graph.convert, before bs.graph.fuse and bs.graph.lower"
            )
    return pieces


def _take_dequantize(graph: fx.GraphModule, node: fx.Node, pieces: list[Piece]) -> None:
    found = dequantize_of(node)
    assert found is not None
    stored = _constants(graph, found.coded)
    if stored is not None:
        _take_weight(graph, node, stored, found.dtype, pieces)
        return
    source: Any = found.coded.codes
    if calls(source, operator.getitem):
        source = source.args[0]
    by = quantize_of(source)
    if by is None:
        raise ValueError(
            f"{described(node)}: its codes come from {getattr(source, 'name', source)}, and "
            "not from a weight or a quantize: pass the result of bs.graph.convert"
        )
    _take_activation(graph, node, by.x, by.by, found.dtype, pieces)


def _constants(graph: fx.GraphModule, coded: Operand) -> Operand | None:
    """The operand with tensors in the place of nodes; None where a part is computed."""
    tensors = [*coded[:4], *(coded.more or ())]
    if not all(part is None or is_constant(part) for part in tensors):
        return None

    def read(part: Any) -> Any:
        return None if part is None else get(graph, part).detach().cpu()

    more = None if coded.more is None else [read(part) for part in coded.more]
    codes, scale, zero, outer = (read(part) for part in coded[:4])
    return Operand(codes, scale, zero, outer, coded.fmt, int(coded.size), more)


def _take_weight(
    graph: fx.GraphModule, node: fx.Node, stored: Operand, dtype: torch.dtype, pieces: list[Piece]
) -> None:
    name = str(node.args[0].target).removesuffix(".codes")  # type: ignore[union-attr]
    for user in list(node.users):
        if calls(user, aten.linear) and user.args[1] is node:
            _as_matmul(graph, user, node)
    readers: dict[tuple[Move, ...], list[fx.Node]] = {}
    for last, moves in _ends(node, ()):
        readers.setdefault(moves, []).append(last)
    for moves, ends in readers.items():
        pieces.append(Weight(name, stored, moves, dtype))
        sizes = tuple(shape(ends[0]) or ())
        args = (len(pieces) - 1, node.args[0], sizes, dtype)
        mark = call(graph, placed, args, like=_first(graph, ends))
        for end in ends:
            end.replace_all_uses_with(mark)


def _as_matmul(graph: fx.GraphModule, linear: fx.Node, weight: fx.Node) -> None:
    """linear(x, w, b) -> matmul(x, w.T) + b: weights [k, n], which onnxruntime fuses."""
    x, bias = linear.args[0], (linear.args[2] if len(linear.args) > 2 else None)
    turned = call(graph, aten.permute.default, (weight, [1, 0]), like=linear)
    y = call(graph, aten.matmul.default, (x, turned), like=linear)
    if bias is not None:
        y = call(graph, aten.add.Tensor, (y, bias), like=linear)
    replace(linear, y)


_VIEWS = (aten.view, aten.reshape, aten._unsafe_view)


def _ends(node: fx.Node, moves: tuple[Move, ...]) -> list[tuple[fx.Node, tuple[Move, ...]]]:
    """The nodes behind views and permutations of a weight, with these; the weight itself, too."""
    found, stays = [], False
    for user in node.users:
        if calls(user, *_VIEWS) and all(isinstance(size, int) for size in user.args[1]):  # type: ignore[union-attr]
            sizes = tuple(int(size) for size in shape(user) or ())
            found += _ends(user, (*moves, ("view", sizes)))
        elif calls(user, aten.permute):
            dims: Any = user.args[1]
            rank = len(dims)
            found += _ends(user, (*moves, ("permute", tuple(dim % rank for dim in dims))))
        else:
            stays = True
    return [*found, (node, moves)] if stays else found


def _first(graph: fx.GraphModule, ends: list[fx.Node]) -> fx.Node:
    """The first reader of any of the nodes."""
    readers = {user for end in ends for user in end.users}
    return next(node for node in graph.graph.nodes if node in readers)


def _take_rows(graph: fx.GraphModule, node: fx.Node, pieces: list[Piece]) -> None:
    coded, indices, dtype = bound(node, embedding)
    stored = _constants(graph, coded)
    if stored is None:
        raise ValueError(
            f"{described(node)}: its table is computed in the graph; only a stored table can "
            "be written"
        )
    name = str(coded.codes.target).removesuffix(".codes")
    pieces.append(Rows(name, stored, dtype))
    _place(graph, node, indices, len(pieces) - 1, dtype)


def _place(
    graph: fx.GraphModule, node: fx.Node, x: fx.Node, number: int, dtype: torch.dtype
) -> None:
    """A mark with the sizes of `node`, which are read from x where they are free."""
    sizes = shape(node) or ()
    behind = tuple(sizes[len(shape(x) or ()) :])
    replace(node, call(graph, placed_like, (number, x, behind, dtype), like=node))


def _take_activation(
    graph: fx.GraphModule,
    node: fx.Node,
    x: fx.Node,
    by: Quantizer,
    dtype: torch.dtype,
    pieces: list[Piece],
) -> None:
    fmt, qparams = by.format, None
    if by.scale is not None:
        coded = Operand(by.scale, by.scale, by.zero_point, by.outer, by.fmt, 0, by.more)
        parts = _constants(graph, coded)
        if parts is None:
            raise ValueError(
                f"{described(node)}: its scale is computed in the graph: use a static scale"
            )
        qparams = parts.qparams
    sizes = tuple(n if isinstance(n, int) else None for n in shape(x) or ())
    if reason := activation.refused(fmt, qparams, sizes):
        raise ValueError(f"{described(node)}: an ONNX file cannot quantize to {fmt}: {reason}")
    name = _named(node, by)
    pieces.append(Activation(name, fmt, qparams, sizes, value(x).dtype, dtype))
    per_tensor = fmt.block.name == "tensor" or (qparams is not None and qparams.scale.numel() == 1)
    if per_tensor and calls(x, aten.permute):
        _before_permute(graph, node, x, len(pieces) - 1, dtype)
    else:
        _place(graph, node, x, len(pieces) - 1, dtype)


def _named(node: fx.Node, by: Quantizer) -> str:
    """What the parts of an activation's format are called: as its scale, or after its layer."""
    stored: Any = by.scale
    if is_constant(stored):
        return str(stored.target).removesuffix(".scale")
    return f"{scope(node)}.input".lstrip(".")


def _before_permute(
    graph: fx.GraphModule, node: fx.Node, x: fx.Node, number: int, dtype: torch.dtype
) -> None:
    """One scale for all does not see the order of dimensions: permute afterwards, or not at all."""
    plain, dims = x.args[0], list(x.args[1])  # type: ignore[arg-type]
    assert isinstance(plain, fx.Node)
    mark = call(graph, placed_like, (number, plain, (), dtype), like=node)
    back = [dims.index(i) for i in range(len(dims))]
    for user in list(node.users):
        if calls(user, aten.permute) and list(user.args[1]) == back:  # type: ignore[arg-type]
            user.replace_all_uses_with(mark)
    replace(node, call(graph, aten.permute.default, (mark, dims), like=node))
