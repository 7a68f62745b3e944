# SPDX-License-Identifier: BSD-3-Clause
"""From an integer graph to steps of C: every node in turn, at the sizes of an example."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from blockscale.export.to_c.ops import emitters
from blockscale.export.to_c.text import C_TYPES, Access, Array, loops, number, strides_of
from blockscale.export.to_c.writer import CWriter
from blockscale.graph.lowering.integers.fixed import NotIntegerError
from blockscale.graph.lowering.integers.moves import MOVES
from blockscale.graph.nodes import aten, calls, describe
from blockscale.ops.integer import INTEGER_OPS

_PADS = (aten.constant_pad_nd, aten.pad)
_MOVES = (*MOVES, aten.cat, aten.concat, aten.stack, aten.index, *_PADS)


@dataclass(frozen=True)
class Door:
    """An input or output of the C function: (code - zero) * 2^exponent is its value, if it has one.

    name: in the model; about: where it stands in the file's head
    """

    array: Array
    shape: tuple[int, ...]
    name: str
    zero: int | None = None
    exponent: int | None = None


@dataclass(frozen=True)
class CGraph:
    """What a graph has become."""

    writer: CWriter
    inputs: list[Door]
    outputs: list[Door]


class _Values(fx.Interpreter):
    """Runs a graph with the example, and remembers what every node gives."""

    def __init__(self, graph: fx.GraphModule):
        super().__init__(graph, garbage_collect_values=False)
        self.results: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        self.results[n] = result
        return result


def walk(graph: fx.GraphModule, example: Sequence[Any]) -> CGraph:
    """Steps for all nodes. Raises NotIntegerError, which names the first without a C form."""
    values = _Values(graph)
    with torch.no_grad():
        values.run(*example)
    return _Walk(values.results).over(graph)


class _Walk:
    """The walk's state: what nodes gave for the example, and which depend on inputs."""

    def __init__(self, table: dict[fx.Node, Any]):
        self.values = table
        self.writer = CWriter()
        self.writer.sizes = {n: v.shape for n, v in table.items() if isinstance(v, Tensor)}
        self.inputs: list[Door] = []
        self.outputs: list[Door] = []
        self.ours = {op.overload: name.removeprefix("integer_") for name, op in INTEGER_OPS.items()}
        self.constants: set[fx.Node] = set()

    def over(self, graph: fx.GraphModule) -> CGraph:
        for node in graph.graph.nodes:
            if node.op == "output":
                self._give(node)
            else:
                self._visit(node)
        if not self.outputs:
            raise NotIntegerError("the graph computes no output: there is nothing to write")
        return CGraph(self.writer, self.inputs, self.outputs)

    def _visit(self, node: fx.Node) -> None:
        value = self.values[node]
        is_list = isinstance(value, list | tuple)
        if not isinstance(value, Tensor) and not is_list:
            self.constants.add(node)  # a size
            return
        name = self.ours.get(node.target, "")
        if node.op == "placeholder":
            if not value.is_floating_point():
                self._input(node, node, value.dtype)
        elif name == "quantize":
            self._input(node, node.args[0], value.dtype)  # type: ignore[arg-type]
        elif name == "dequantize":
            pass  # what it reads goes out
        elif all(each in self.constants for each in node.all_input_nodes):
            self._constant(node, value)
        elif name:
            self._op(node, name)
        elif calls(node, *_MOVES) or node.target is operator.getitem:
            self._move(node)
        elif computes_mask(node) and not is_list:
            mask(self.writer, node, value)
        else:
            raise NotIntegerError(_no_form(node))

    def _input(self, node: fx.Node, source: fx.Node, dtype: torch.dtype) -> None:
        shape = tuple(self.values[node].shape)
        names = {door.array.name for door in self.inputs}
        name = f"in_{source.name}"
        while name in names:
            name += "_again"
        array = self.writer.array(name, "input", dtype, self.values[node].numel(), describe(node))
        self.writer.places[node] = array.places(shape)
        zero, exponent = (node.args[2], node.args[1]) if node is not source else (None, None)
        self.inputs.append(Door(array, shape, source.name, zero, exponent))  # type: ignore[arg-type]

    def _constant(self, node: fx.Node, value: Any) -> None:
        self.constants.add(node)
        if isinstance(value, Tensor) and not value.is_floating_point():
            rest = self.writer.constant(node.name, value, describe(node))
            self.writer.places[node] = rest.places(value.shape)

    def _op(self, node: fx.Node, name: str) -> None:
        emit = emitters().get(name)
        if emit is None:
            raise NotIntegerError(_no_form(node))
        names = INTEGER_OPS[f"integer_{name}"].signature.names
        arguments = dict(zip(names, map(self._plain, node.args), strict=True))
        for each in node.all_input_nodes:
            if each not in self.writer.places and each not in self.constants:
                raise NotIntegerError(
                    f"{describe(node)} ({node.name}) reads floats ({each}), and C files "
                    "compute with integers only"
                )
        access: Access = emit(self.writer, node, arguments)
        if (
            access.shape != tuple(self.values[node].shape)
            or access.array.dtype != self.values[node].dtype
        ):
            raise AssertionError(f"{node.name}: {access} is not {self.values[node].shape}")
        self.writer.keep(node, access)

    def _plain(self, value: Any) -> Any:
        """An argument with sizes as numbers."""
        return fx.node.map_arg(value, self._size)

    def _size(self, node: fx.Node) -> Any:
        value = self.values[node]
        return node if isinstance(value, Tensor) else value

    def _move(self, node: fx.Node) -> None:
        """The same move of places."""
        args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), self._place)
        if calls(node, aten.index_select):
            args = (*args[:2], self._constant_indices(node, node.args[2]))
        if calls(node, aten.index):
            value: Any = node.args[1]
            args = (args[0], [each and self._constant_indices(node, each) for each in value])
        target: Any = node.target
        try:
            self.writer.places[node] = target(*args, **kwargs)
        except (RuntimeError, NotImplementedError) as error:
            raise NotIntegerError(
                f"{describe(node)} ({node.name}) has no C form: {error}"
            ) from error

    def _place(self, node: fx.Node) -> Any:
        return self.writer.places.get(node, self.values[node])

    def _constant_indices(self, node: fx.Node, index: Any) -> Tensor:
        """Indices that do not depend on inputs."""
        if index not in self.constants:
            raise NotIntegerError(f"{describe(node)} ({node.name}) has no C form: its indices are "
                                  f"computed from inputs")  # fmt: skip
        return self.values[index]

    def _give(self, output: fx.Node) -> None:
        """Copy results to the function's outputs; those that are no tensors are left out."""
        for node in output.all_input_nodes:
            door = self.ours.get(node.target) == "dequantize"
            source: Any = node.args[0] if door else node
            places = self.writer.places.get(source)
            if not isinstance(places, Tensor):
                if node in self.constants or node.op == "placeholder":
                    continue
                raise NotIntegerError(
                    f"{describe(node)} ({node.name}) is a float output, and C files compute "
                    "with integers only"
                )
            self._copy_out(node, source, places, door)

    def _copy_out(self, node: fx.Node, source: fx.Node, places: Tensor, door: bool) -> None:
        value, w = self.values[source], self.writer
        array = w.array(f"out_{len(self.outputs)}", "output", value.dtype, value.numel(), node.name)
        shape = tuple(value.shape)
        w.copy(places, Access(array, 0, shape, strides_of(shape)), node)
        zero, exponent = node.args[1:3] if door else (None, None)
        self.outputs.append(Door(array, shape, source.name, zero, exponent))  # type: ignore[arg-type]


# Masks that are computed from inputs: which tokens are there, compared and joined.


_JOINED = {  # of truth values, which are 0 or 1
    "&": (aten.__and__, aten.bitwise_and, aten.logical_and),
    "|": (aten.__or__, aten.bitwise_or, aten.logical_or),
}
_COMPARED = {
    "==": aten.eq, "!=": aten.ne, "<": aten.lt, "<=": aten.le, ">": aten.gt, ">=": aten.ge,
}  # fmt: skip
_NOT = (aten.logical_not, aten.bitwise_not)
_CAST = (aten.to, aten._to_copy)


def computes_mask(node: fx.Node) -> bool:
    """Whether `mask` knows what a node calls."""
    junctions = (each for some in _JOINED.values() for each in some)
    return calls(node, *junctions, *_COMPARED.values(), *_NOT, *_CAST)


def mask(w: CWriter, node: fx.Node, tensor: Tensor) -> None:
    """A step for a comparison, a junction of truth values, or truth values of integers.

    made: what the node gave for the example: its shape and dtype

    Raises NotIntegerError for operands that are floats or no truth values, and for integers that
    the result's dtype does not hold.
    """
    members = [each for each in node.args if isinstance(each, fx.Node | int | bool)]
    if calls(node, *_CAST):
        members = members[:1]
    reads = {f"x{i}": each for i, each in enumerate(members) if isinstance(each, fx.Node)}
    if any(each not in w.places for each in reads.values()):
        raise NotIntegerError(
            f"{describe(node)} ({node.name}) has no C form: it does not read integers"
        )
    data = {k: w.access(w.places[v].expand(tensor.shape), v) for k, v in reads.items()}
    names, heads, ends = loops(tensor.shape)
    words = [f"x{i}[{data[f'x{i}'].at(names)}]" if isinstance(each, fx.Node)
             else number(int(each))
             for i, each in enumerate(members)]  # fmt: skip
    y = w.result(tensor.dtype, tensor.shape, node)
    value = _value(node, words, [each.array.dtype for each in data.values()], tensor.dtype)
    takes: dict[str, Any] = {**data}
    w.step(node, "mask", takes, y, [*heads, f"y[{y.at(names)}] = {value};", *ends])
    w.keep(node, y)


def _value(node: fx.Node, words: list[str], dtypes: list[torch.dtype], dtype: torch.dtype) -> str:
    """The C expression of an element."""
    truths = all(each == torch.bool for each in dtypes)
    for sign, comparison in _COMPARED.items():
        if calls(node, comparison):
            return f"{words[0]} {sign} {words[1]}"
    for sign, some in _JOINED.items():
        if calls(node, *some) and truths and dtype == torch.bool:
            return f"{words[0]} {sign} {words[1]}"
    if calls(node, *_NOT) and truths:
        return f"!{words[0]}"
    if calls(node, *_CAST) and dtype == torch.bool:
        return f"{words[0]} != 0"
    if calls(node, *_CAST) and dtype in C_TYPES and (truths or dtype == torch.int64):
        return f"({C_TYPES[dtype]}){words[0]}"
    raise NotIntegerError(f"{describe(node)} ({node.name}) has no C form: its mask is not bool")


def _no_form(node: fx.Node) -> str:
    """Why a node that computes something else cannot be written."""
    return (
        f"{describe(node)} ({node.name}) has no C form: replace it by an op that has one "
        "(docs/integers.md), or write another target"
    )
