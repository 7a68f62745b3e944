# SPDX-License-Identifier: BSD-3-Clause
"""The C file while it is being written: arrays, steps, and what ops read and make."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, fx

from blockscale.core.parse import parse
from blockscale.export.to_c.text import (
    C_TYPES,
    Access,
    Array,
    affine,
    head,
    indices,
    loops,
    nested,
    number,
    numbers,
    strides_of,
)
from blockscale.graph.lowering.integers.fixed import NotIntegerError
from blockscale.graph.nodes import describe


@dataclass(frozen=True)
class CStep:
    """A function of the file: what it is called, the node that it stands for, its parameters as
    (name, array, whether it is written), its lines."""

    name: str
    node: str
    takes: tuple[tuple[str, Array, bool], ...]
    lines: tuple[str, ...]


class CWriter:
    """Writes steps, one after another.

    arrays: all, by number; tables: what constants hold; steps: so far
    places: {node: where its elements lie}; sizes: {node: its shape}
    """

    def __init__(self) -> None:
        self.arrays: dict[int, Array] = {}
        self.tables: dict[int, Tensor] = {}
        self.steps: list[CStep] = []
        self.places: dict[fx.Node, Any] = {}
        self.sizes: dict[fx.Node, Sequence[int]] = {}

    def array(self, name: str, kind: str, dtype: torch.dtype, size: int, what: str) -> Array:
        """A new array. Raises NotIntegerError for a dtype that C has no integers for."""
        if dtype not in C_TYPES:
            raise NotIntegerError(f"{what} is {dtype}, which has no C form")
        if size == 0:
            raise NotIntegerError(f"{what} has no elements, which has no C form")
        result = Array(name, kind, dtype, size, len(self.arrays) + 1)
        self.arrays[result.number] = result
        return result

    def constant(self, name: str, values: Tensor, what: str) -> Array:
        """A table of the file."""
        result = self.array(f"c{len(self.arrays) + 1}_{name}", "constant", values.dtype,
                          values.numel(), what)  # fmt: skip
        self.tables[result.number] = values.detach().contiguous()
        return result

    def read(self, node: fx.Node, *, whole: bool = False) -> Access:
        """The elements of a node's value, copied where no strides reach them.

        whole: contiguous
        """
        return self.access(self.places[node], node, whole=whole)

    def access(self, places: Tensor, node: fx.Node, *, whole: bool = False) -> Access:
        """The elements at some places, as `read`."""
        result, straight = numbers(places), affine(indices(places))
        first = int(result.flatten()[0])
        if first and straight is not None and bool((result == first).all()):
            output = Access(self.arrays[first], straight[0], tuple(places.shape), straight[1])
            if not whole or output.contiguous:
                return output
        target = self.result(self._type(result, node), tuple(places.shape), node)
        self.copy(places, target, node)
        return target

    def _type(self, tensor: Tensor, node: fx.Node) -> torch.dtype:
        entries = [self.arrays[n].dtype for n in tensor.unique().tolist() if n]
        if not entries:
            raise NotIntegerError(
                f"{describe(node)} reads nothing but padding, which has no C form"
            )
        return entries[0]

    def result(self, dtype: torch.dtype, shape: Sequence[int], node: fx.Node) -> Access:
        """Room in the arena for what the next step makes."""
        size = prod(shape)
        output = self.array(f"a{len(self.arrays) + 1}", "arena", dtype, size, describe(node))
        output.first = output.last = len(self.steps)
        return Access(output, 0, tuple(shape), strides_of(shape))

    def keep(self, node: fx.Node, access: Access) -> None:
        """Say where a node's value lies."""
        self.places[node] = access.array.places(access.shape)

    def step(self, node: fx.Node, op: str, takes: dict[str, Access | Array], y: Access,
             lines: Sequence[str], room: dict[str, Array] | None = None) -> None:  # fmt: skip
        """A step that reads some arrays by their names in `lines`, and writes y.

        room: what it also writes and no step reads later
        """
        of = {k: each if isinstance(each, Array) else each.array for k, each in takes.items()}
        now = len(self.steps)
        for each in (*of.values(), y.array, *(room or {}).values()):
            each.last = max(each.last, now)
        read = [(k, each, False) for k, each in of.items()]
        outputs = [(k, each, True) for k, each in (room or {}).items()]
        name = f"step{now}_{op}"
        all_of = (*read, *outputs, ("y", y.array, True))
        self.steps.append(CStep(name, node.name, all_of, tuple(lines)))

    def copy(self, places: Tensor, y: Access, node: fx.Node) -> None:
        """A step that gathers what lies at some places."""
        result, at = numbers(places), indices(places)
        takes: dict[str, Access | Array] = {}
        lines: list[str] = []
        which = result.unique().tolist()
        straight = affine(at)
        if len(which) == 1 and straight is not None:
            source = Access(self.arrays[which[0]], straight[0], y.shape, straight[1])
            names, heads, ends = loops(y.shape)
            lines = [*heads, f"y[{y.at(names)}] = x[{source.at(names)}];", *ends]
            self.step(node, "move", {"x": source}, y, lines)
            return
        for n in which:  # what is filled in comes first, over everything, if it is one number
            here = result.flatten() == n
            lines += self._part(n, torch.stack([here.nonzero().flatten(), at[result == n]], 1),
                                takes, node, y)  # fmt: skip
        self.step(node, "move", takes, y, lines)

    def _part(self, n: int, both: Tensor, takes: dict[str, Access | Array], node: fx.Node,
              y: Access) -> list[str]:  # fmt: skip
        """Lines that copy what comes from one array, or is filled in; both: [count, 2], where each
        element goes and where it comes from."""
        if n == 0 and bool((both[:, 1] == both[0, 1]).all()):
            return [head("i", y.array.size), f"y[i] = {int(both[0, 1])};", "}"]
        name = f"x{n}"
        if n:
            takes[name] = self.arrays[n]
        result = nested(both)
        if result is None:
            takes[f"m{n}"] = self.constant("map", both.to(torch.int32), describe(node))
            text = f"m{n}[2 * i + 1]"
            line = f"y[m{n}[2 * i]] = {f'{name}[{text}]' if n else text};"
            return [head("i", len(both)), line, "}"]
        (to, source), sizes, steps = result
        names, heads, ends = loops(sizes)
        at = [Access(y.array, first, tuple(sizes), tuple(each[k] for each in steps)).at(names)
              for k, first in enumerate((to, source))]  # fmt: skip
        return [*heads, f"y[{at[0]}] = {f'{name}[{at[1]}]' if n else at[1]};", *ends]


class SumEnd:
    """How an op ends: from the sum `acc` to a code, or a sum still."""

    def __init__(self, w: CWriter, node: fx.Node, data: dict[str, Any], wide: bool):
        self.zero, self.low, self.high = (data[k] for k in ("zero", "low", "high"))
        self.form = parse(data["fmt"]) if data["fmt"] else None
        self.wide = wide
        self.dtype = self.form.element.code_dtype if self.form else _sums(wide)
        self.takes: dict[str, Access | Array] = {}
        shift = data["shift"]
        values = w.tables[int(numbers(w.places[shift]).flatten()[0])] if isinstance(
            shift, fx.Node) else shift  # fmt: skip
        self.values = values.flatten()
        same = bool((self.values == self.values[0]).all())
        if same:
            self.shift = str(int(self.values[0]))
        else:
            self.takes["shift"] = w.constant("shift", self.values.to(torch.int8), node.name)
            self.shift = ""

    def of(self, acc: str, channel: str) -> str:
        """The C expression of what `acc` becomes; channel: the index of the last dimension."""
        shift = self.shift or f"shift[{channel}]"
        cast = C_TYPES[self.dtype]
        if self.form is None:
            sums = acc if shift == "0" else f"shifted_left({acc}, {shift})"
            if self.low != self.high:
                sums = f"within({sums}, {number(self.low)}, {number(self.high)})"
            return sums if sums == acc else f"({cast}){sums}"
        near = bool((self.values < 0).any()) and self.wide
        inner = f"near_codes({acc}, {shift})" if near else acc
        rounded = inner if shift == "0" else f"rounded_{self.form.rounding}({inner}, {shift})"
        plus = f" + {self.zero}" * (self.zero != 0)
        if shift == "0" and plus:
            rounded = f"(int64_t){rounded}"
        return f"({cast})within({rounded}{plus}, {self.low}, {self.high})"


def _sums(wide: bool) -> torch.dtype:
    return torch.int64 if wide else torch.int32


def less(x: str, zero: int, kind: str) -> str:
    """An element without its zero point, in the accumulator's type."""
    return f"({kind}){x}" if zero == 0 else f"(({kind}){x} - {zero})"


def kind_of(largest: int) -> str:
    """The C type that holds sums up to `largest`."""
    return "int32_t" if largest < 2**31 else "int64_t"
