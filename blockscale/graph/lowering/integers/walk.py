# SPDX-License-Identifier: BSD-3-Clause
"""From a fused graph to one of integers: every node in turn, in place."""

import operator
from dataclasses import replace
from typing import Any, cast

from torch import Tensor, fx

from blockscale.core.operand import UNQUANTIZED
from blockscale.core.operand import Value as FusedOperand
from blockscale.graph.constants import is_constant
from blockscale.graph.lowering.integers.builder import Builder, Task, Value
from blockscale.graph.lowering.integers.fixed import Fixed, NotIntegerError, Own
from blockscale.graph.lowering.integers.moves import MOVES
from blockscale.graph.lowering.integers.rules import rules
from blockscale.graph.lowering.integers.rules.elementwise import join
from blockscale.graph.nodes import (
    arguments,
    aten,
    bound,
    call,
    calls,
    dequantize_of,
    describe,
    ours,
    quantize_of,
    shape,
    value,
)
from blockscale.graph.passes.fused import read
from blockscale.ops.embedding import embedding
from blockscale.ops.fused import match

_JOINS = (aten.cat, aten.concat, aten.stack)
_PADS = (aten.constant_pad_nd, aten.pad)
_KEEP = (aten.permute, aten.transpose, aten.contiguous, aten.clone, aten.alias)


def translate(graph: fx.GraphModule) -> Builder:
    """Write integer ops in the place of all others that know floats; what is dead stays for tidy.

    Raises NotIntegerError, which names it, for the first node that integers cannot take over.
    """
    builder = Builder(graph)
    for node in list(graph.graph.nodes):
        if builder.value(node) is not None:
            continue  # a piece of what stands before it
        if node.op == "output":
            _give_out(builder, node)
        elif node.op == "call_function" and not (_quiet(builder, node) or _moves_input(node)):
            builder.remember(node, _integers(builder, node))
    return builder


def _quiet(builder: Builder, node: fx.Node) -> bool:
    """Whether a node knows no floats, and nothing that has become integers: it stays as it is.

    So does one that is computed from constants alone: where it is needed, its value is taken.
    """
    inputs = node.all_input_nodes
    if any(builder.value(each) is not None for each in inputs):
        return False
    if quantize_of(node) is not None or read(node) is not None:
        return False
    return not _floats(value(node)) or _constant(node)


def _constant(node: fx.Node) -> bool:
    inputs = node.all_input_nodes
    return is_constant(node) or (
        node.op == "call_function" and bool(inputs) and all(_constant(each) for each in inputs)
    )


def _floats(values: Any) -> bool:
    if isinstance(values, list | tuple):
        return any(_floats(each) for each in values)
    return isinstance(values, Tensor) and values.is_floating_point()


def _integers(builder: Builder, node: fx.Node) -> Value:
    """The integers that stand for a node."""
    what = describe(node)
    quantizes, decoded = quantize_of(node), dequantize_of(node)
    if quantizes is not None:
        return _quantized(builder, node, what)
    if decoded is not None:
        integers = builder.value(decoded.operand.codes)
        if integers is None:
            raise NotIntegerError(f"{what} dequantizes a constant that no integer op reads")
        return integers
    if calls(node, *MOVES, *_PADS) or _takes_first(node):
        return _move(builder, node, what)
    if calls(node, *_JOINS) and read(node) is None:
        return join(builder, node, node.args[0], what)  # type: ignore[arg-type]
    task = _task(node, what)
    rule = None if task is None else rules().get(task.name)
    if task is None or rule is None:
        raise NotIntegerError(
            f"{what} has no integer form here: replace it by an op that has one "
            "(docs/integers.md), or leave it out of the model"
        )
    return rule(builder, task)


def _takes_first(node: fx.Node) -> bool:
    if calls(node, aten.dropout) and arguments(node)["train"] and arguments(node)["p"]:
        raise NotIntegerError(f"{describe(node)} drops values: call model.eval() before exporting")
    return node.target in (aten.dropout.default, aten.to.dtype, aten.to.device)


def _quantized(builder: Builder, node: fx.Node, what: str) -> Value:
    """Codes of floats that come in, or of integers by a shift."""
    quantizes = quantize_of(node)
    assert quantizes is not None
    y = builder.fixed(quantizes.by, what)
    assert y is not None
    before = builder.value(quantizes.x)
    if before is not None:
        return before if before.fixed == y else builder.to_format(node, before, y)
    return _from_input(builder, node, quantizes.x, y)


def _from_input(builder: Builder, like: fx.Node, x: fx.Node, y: Fixed) -> Value:
    """Codes of an input of the model, which are moved in the place of its floats."""
    if x.op == "placeholder":
        return builder.emit(like, "quantize", [x, y.exponent, y.zero, y.fmt], y)
    if not _moves_input(x):
        raise NotIntegerError(
            f"{describe(x)} computes in float before anything is quantized: only inputs of "
            f"the model are floats"
        )
    source: Any = x.args[0]
    before = _from_input(builder, like, source, y)
    return before if _takes_first(x) else _again(builder, x, before, describe(x), like)


def _moves_input(node: Any) -> bool:
    """Whether a node only moves floats of the model's input."""
    if not isinstance(node, fx.Node) or not (calls(node, *MOVES, *_PADS) or _takes_first(node)):
        return False
    source = node.args[0]
    return isinstance(source, fx.Node) and (source.op == "placeholder" or _moves_input(source))


def _move(builder: Builder, node: fx.Node, what: str) -> Value:
    """The same move of integers."""
    source: Any = node.args[0]
    before = builder.value(source)
    if before is None:
        raise NotIntegerError(
            f"{what} moves floats that were never quantized: set a format before it"
        )
    is_list = node.target is operator.getitem and read(source) is not None
    if is_list or _takes_first(node):
        return before
    return _again(builder, node, before, what, node)


def _again(builder: Builder, node: fx.Node, before: Value, what: str, like: fx.Node) -> Value:
    """The op of `node`, applied to codes in the place of its first argument."""
    rest = list(node.args[1:])
    if calls(node, *_PADS):
        rest = _padding(node, rest, before.fixed, what)
    target: Any = node.target
    copy = call(builder.graph, target, (before.node, *rest), node.kwargs, like=like)
    return Value(copy, replace(before.fixed, own=_own_moved(node, rest, before.fixed.own)))


def _own_moved(node: fx.Node, rest: list[Any], own: Own | None) -> Own | None:
    """What is known of channels where a move leaves them together; None elsewhere."""
    sizes, target = shape(node.args[0]), cast("Any", node.target)
    if own is None or not sizes or not calls(node, *_KEEP, aten.flatten):
        return None
    apart = own.apart.reshape(*[1] * (len(sizes) - own.apart.ndim), *own.apart.shape)
    if calls(node, aten.flatten):
        inner = sizes[1:]
        if (rest[0] if rest else 0) < 1 or not all(isinstance(n, int) for n in inner):
            return None  # mixed with a batch, or of free sizes
        apart = apart.expand(1, *inner)
    return Own(target(apart, *rest, **node.kwargs), own.largest)


def _padding(node: fx.Node, rest: list[Any], fixed: Fixed, what: str) -> list[Any]:
    """The arguments of padding with the code of 0, of floats or of codes."""
    zero = 0 if _floats(value(node)) else fixed.zero
    if calls(node, aten.pad):
        mode = rest[1] if len(rest) > 1 else "constant"
        number = rest[2] if len(rest) > 2 and rest[2] is not None else 0
        if mode != "constant":
            return rest
        tail = [rest[0], "constant", fixed.zero]
    else:
        number = rest[1] if len(rest) > 1 else 0
        tail = [rest[0], fixed.zero]
    if number != zero:
        raise NotIntegerError(f"{what} pads with {number}: only zeros are supported")
    return tail


def _task(node: fx.Node, what: str) -> Task | None:
    """The fused op that a node is, or stands for; None for others."""
    fused_call = read(node)
    if fused_call is not None:
        name, operands = fused_call.fused.name, fused_call.operands
        return Task(node, what, name, operands, fused_call.settings, fused_call.y)
    if calls(node, ours.embedding):
        table, indices, _ = bound(node, embedding)
        return Task(
            node, what, "embedding", [FusedOperand(*table)], {"indices": indices}, UNQUANTIZED
        )
    like = match(node)
    if like is None:
        return None
    operands = [FusedOperand(each) for each in like.operands]  # type: ignore[arg-type]
    settings = like.fused.settings | like.settings
    return Task(node, what, like.fused.name, operands, settings, UNQUANTIZED)


def _give_out(builder: Builder, output: fx.Node) -> None:
    """Give the graph's results as floats."""
    output.args = fx.node.map_arg(output.args, lambda n: _to_float(builder, n, output))


def _to_float(builder: Builder, node: fx.Node, output: fx.Node) -> fx.Node:
    """What a result of the graph is in float32; integers that never were floats stay."""
    integers = builder.value(node)
    if integers is None:
        if node.op != "placeholder" and not is_constant(node) and _floats(value(node)):
            raise NotIntegerError(
                f"{describe(node)} returns floats that were never quantized: set a format for them"
            )
        return node
    if not _floats(value(node)) and value(node) is not None:
        return integers.node  # codes that the graph gives as codes
    fixed, codes = integers.fixed, integers.node
    if calls(codes, aten.contiguous) and len(codes.args) == 1 and not codes.kwargs:
        codes = codes.all_input_nodes[0]  # the floats lie in order anyway
    return builder.emit(output, "dequantize", [codes, fixed.zero, fixed.exponent], fixed).node
