# SPDX-License-Identifier: BSD-3-Clause
"""What marks stand for in a graph that torch's exporter translates: the parts that quantize.

A mark is a node `blockscale.export::Placed` with a number and the sizes of what will be there."""

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from blockscale.core.format import Format
from blockscale.core.operand import Operand, Quantizer
from blockscale.core.reference import QParams
from blockscale.export.to_onnx import activation
from blockscale.export.to_onnx.integer import TensorInput, is_written
from blockscale.export.to_onnx.scope import Sizes
from blockscale.export.to_onnx.weight import Move
from blockscale.graph.constants import get, is_constant
from blockscale.graph.lowering.integers.audit import name_of
from blockscale.graph.nodes import (
    arguments,
    aten,
    bound,
    call,
    calls,
    dequantize_of,
    describe,
    each_call,
    ours,
    quantize_of,
    replace,
    scope,
    shape,
    value,
)
from blockscale.ops.embedding import embedding
from blockscale.ops.integer import INTEGER_OPS

MARK = "blockscale.export", "Placed"


@dataclass(frozen=True, eq=False)
class MarkedWeight:
    """A dequantized weight. moves: the views and permutations that its reader wants."""

    name: str
    stored: Operand
    moves: tuple[Move, ...]
    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class MarkedRows:
    """Rows of a quantized table; the mark is given their indices."""

    name: str
    stored: Operand
    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class Activation:
    """A round trip of what the mark is given.

    qparams: static ones; sizes: None where free; source_dtype, dtype: of what comes in and goes out
    """

    name: str
    fmt: Format
    qparams: QParams | None
    sizes: Sizes
    source_dtype: torch.dtype
    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class MarkedStep:
    """An op of an integer graph, without `integer_`. args: {argument: as integer.py takes it}"""

    name: str
    op: str
    args: dict[str, Any]


Piece = MarkedWeight | MarkedRows | Activation | MarkedStep


def placed(
    number: int, x: Tensor, sizes: tuple[Any, ...], dtype: torch.dtype, *more: Tensor
) -> Tensor:
    """A mark: to torch an op that makes of x, and more, a tensor of these sizes and this dtype."""
    mark: Tensor = torch.onnx.ops.symbolic(
        "::".join(MARK), [x, *more], {"number": number}, dtype=dtype, shape=sizes, version=1
    )
    return mark


def placed_as(number: int, y: Tensor, x: Tensor, *more: Tensor) -> Tensor:
    """A mark that takes x, and more, and whose result has the sizes and the dtype of y."""
    return placed(number, x, tuple(y.shape), y.dtype, *more)


def placed_like(number: int, x: Tensor, behind: tuple[Any, ...], dtype: torch.dtype) -> Tensor:
    """A mark whose result has the sizes of x and those in `behind`."""
    return placed(number, x, (*x.shape, *behind), dtype)


# A graph of torch's and our ops with a mark in the place of each part that quantizes.
#
# torch's own exporter translates the float ops. It sees a mark, `blockscale.export::Placed` with a
# number, where a weight is dequantized, rows of a table are looked up, or an activation goes
# through a format; what stands there is written by `write.py` afterwards.


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
                f"{describe(node)}: an ONNX file cannot hold {name}: pass the result of "
                "bs.graph.convert, before bs.graph.fuse and bs.graph.lower"
            )
    return pieces


def _take_dequantize(graph: fx.GraphModule, node: fx.Node, pieces: list[Piece]) -> None:
    dequantize = dequantize_of(node)
    assert dequantize is not None
    stored = _constants(graph, dequantize.operand)
    if stored is not None:
        _take_weight(graph, node, stored, dequantize.dtype, pieces)
        return
    source: Any = dequantize.operand.codes
    if calls(source, operator.getitem):
        source = source.args[0]
    by = quantize_of(source)
    if by is None:
        raise ValueError(
            f"{describe(node)}: its codes come from {getattr(source, 'name', source)}, and "
            "not from a weight or a quantize: pass the result of bs.graph.convert"
        )
    _take_activation(graph, node, by.x, by.by, dequantize.dtype, pieces)


def _constants(graph: fx.GraphModule, operand: Operand) -> Operand | None:
    """The operand with tensors in the place of nodes; None where a part is computed."""
    tensors = [*operand[:4], *(operand.more or ())]
    if not all(part is None or is_constant(part) for part in tensors):
        return None

    def read(part: Any) -> Any:
        return None if part is None else get(graph, part).detach().cpu()

    more = None if operand.more is None else [read(part) for part in operand.more]
    codes, scale, zero, outer = (read(part) for part in operand[:4])
    return Operand(codes, scale, zero, outer, operand.fmt, int(operand.size), more)


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
        pieces.append(MarkedWeight(name, stored, moves, dtype))
        sizes = tuple(shape(ends[0]) or ())
        args = (len(pieces) - 1, node.args[0], sizes, dtype)
        mark = call(graph, placed, args, like=_first(graph, ends))
        for end in ends:
            end.replace_all_uses_with(mark)


def _as_matmul(graph: fx.GraphModule, linear: fx.Node, weight: fx.Node) -> None:
    """linear(x, w, b) -> matmul(x, w.T) + b: weights [k, n], which onnxruntime fuses."""
    x, bias = linear.args[0], (linear.args[2] if len(linear.args) > 2 else None)
    transpose = call(graph, aten.permute.default, (weight, [1, 0]), like=linear)
    y = call(graph, aten.matmul.default, (x, transpose), like=linear)
    if bias is not None:
        y = call(graph, aten.add.Tensor, (y, bias), like=linear)
    replace(linear, y)


_VIEWS = (aten.view, aten.reshape, aten._unsafe_view)


def _ends(node: fx.Node, moves: tuple[Move, ...]) -> list[tuple[fx.Node, tuple[Move, ...]]]:
    """The nodes behind views and permutations of a weight, with these; the weight itself, too."""
    ends, stays = [], False
    for user in node.users:
        if calls(user, *_VIEWS) and all(isinstance(size, int) for size in user.args[1]):  # type: ignore[union-attr]
            sizes = tuple(int(size) for size in shape(user) or ())
            ends += _ends(user, (*moves, ("view", sizes)))
        elif calls(user, aten.permute):
            dims: Any = user.args[1]
            rank = len(dims)
            ends += _ends(user, (*moves, ("permute", tuple(dim % rank for dim in dims))))
        else:
            stays = True
    return [*ends, (node, moves)] if stays else ends


def _first(graph: fx.GraphModule, ends: list[fx.Node]) -> fx.Node:
    """The first reader of any of the nodes."""
    readers = {user for end in ends for user in end.users}
    return next(node for node in graph.graph.nodes if node in readers)


def _take_rows(graph: fx.GraphModule, node: fx.Node, pieces: list[Piece]) -> None:
    table, indices, dtype = bound(node, embedding)
    stored = _constants(graph, table)
    if stored is None:
        raise ValueError(
            f"{describe(node)}: its table is computed in the graph; only a stored table can "
            "be written"
        )
    name = str(table.codes.target).removesuffix(".codes")
    pieces.append(MarkedRows(name, stored, dtype))
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
        scales = Operand(by.scale, by.scale, by.zero_point, by.outer, by.fmt, 0, by.more)
        parts = _constants(graph, scales)
        if parts is None:
            raise ValueError(
                f"{describe(node)}: its scale is computed in the graph: use a static scale"
            )
        qparams = parts.qparams
    sizes = tuple(n if isinstance(n, int) else None for n in shape(x) or ())
    if reason := activation.refusal(fmt, qparams, sizes):
        raise ValueError(f"{describe(node)}: an ONNX file cannot quantize to {fmt}: {reason}")
    name = _name(node, by)
    pieces.append(Activation(name, fmt, qparams, sizes, value(x).dtype, dtype))
    per_tensor = fmt.block.name == "tensor" or (qparams is not None and qparams.scale.numel() == 1)
    if per_tensor and calls(x, aten.permute):
        _before_permute(graph, node, x, len(pieces) - 1, dtype)
    else:
        _place(graph, node, x, len(pieces) - 1, dtype)


def _name(node: fx.Node, by: Quantizer) -> str:
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


# Integer graphs, with marks in the place of their ops as in converted ones.


def is_integers(graph: fx.GraphModule) -> bool:
    """Whether a graph is one that bs.graph.lower(graph, "integer") made."""
    return any(name_of(node) for node in graph.graph.nodes)


def take_integer_ops(graph: fx.GraphModule) -> list[Piece]:
    """Put a mark into an integer graph for each op, in place; what each stands for.

    Raises ValueError that names the first op that ONNX has no integer operators for.
    """
    pieces: list[Piece] = []
    for node in list(graph.graph.nodes):
        op, inputs = _call(node)
        if op is None:
            continue
        if not is_written(op):
            raise ValueError(
                f"{describe(node)}: ONNX has no integer operators for {name_of(node)}: leave it "
                f"in float (bs.graph.convert), or write a C file (bs.export.c)"
            )
        computed_nodes: list[fx.Node] = []
        settings = {name: _read(graph, each, computed_nodes) for name, each in inputs.items()}
        pieces.append(MarkedStep(scope(node) or node.name, op, settings))
        args = (len(pieces) - 1, node, *computed_nodes)
        with_mark = call(graph, placed_as, args, like=node.next)
        node.replace_all_uses_with(
            with_mark, delete_user_cb=lambda user, m=with_mark: user is not m
        )
    return pieces


def _call(node: fx.Node) -> tuple[str | None, dict[str, Any]]:
    """The integer op that a node calls, and its arguments; None for what torch translates."""
    name = name_of(node)
    if name:
        names = INTEGER_OPS[name].signature.names
        return name.removeprefix("integer_"), dict(zip(names, node.args, strict=True))
    if not calls(node, aten.pad, aten.constant_pad_nd) or not _integers(value(node)):
        return None, {}
    inputs = arguments(node)
    if inputs.get("mode", "constant") != "constant":
        return None, {}
    return "pad", {"x": inputs.get("input", inputs.get("self")), "pad": inputs["pad"],
                   "value": inputs.get("value") or 0}  # fmt: skip


def _integers(item: Any) -> bool:
    return isinstance(item, Tensor) and not item.is_floating_point()


def _read(graph: fx.GraphModule, argument: Any, nodes: list[fx.Node]) -> Any:
    """An argument as the writers take it; what the graph computes is added to `nodes`."""
    if not isinstance(argument, fx.Node):
        return argument
    if is_constant(argument):
        return get(graph, argument).detach().cpu()
    nodes.append(argument)
    sizes = tuple(n if isinstance(n, int) else None for n in shape(argument) or ())
    return TensorInput("", value(argument).dtype, sizes)


def without_dead(program: ExportedProgram) -> ExportedProgram:
    """The same without the ops whose marks were made, and checks that keep them."""
    graph = program.graph_module.graph
    for node in list(graph.nodes):
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            graph.erase_node(node)
    graph.eliminate_dead_code()
    program.graph_module.recompile()
    return program
