# SPDX-License-Identifier: BSD-3-Clause
"""What an integer graph costs: shifts, additions, multiplications and bytes of weights, counted.

Energy is by published tables, of the arithmetic alone. "horowitz" is M. Horowitz, "Computing's
energy problem (and what we can do about it)", ISSCC 2014 (45 nm, 0.9 V): additions and
multiplications of 8 and 32 bits; it has no shifts, which cost as additions here. "aladdin" is the
40 nm library of Shao et al., "Aladdin", ISCA 2014, as its simulator has it, for units of 32 bits
and 1 ns: dynamic energy, and the area of a unit.
"""

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, fx

from blockscale.core.arithmetic.sums import INT32_MAX
from blockscale.graph.constants import get
from blockscale.graph.lowering.integers.audit import LAYERS, name_of, terms
from blockscale.graph.lowering.integers.fixed import NotIntegerError
from blockscale.graph.nodes import describe, shape, value
from blockscale.ops.integer import INTEGER_OPS

TABLES = {  # pJ
    "horowitz": {("add", 8): 0.03, ("add", 32): 0.1, ("shift", 8): 0.03, ("shift", 32): 0.1,
                 ("multiply", 8): 0.2, ("multiply", 32): 3.1},
    "aladdin": {("add", 32): 0.21, ("shift", 32): 0.417, ("multiply", 32): 12.7},
}  # fmt: skip
AREAS = {"add": 278.0, "shift": 250.0, "multiply": 6350.0}  # square micrometres, of "aladdin"
_PRODUCTS = (*LAYERS, "integer_matmul", "integer_mul", "integer_attention")


@dataclass(frozen=True)
class OpCost:
    """What products of one node cost, for the sizes that the graph was exported with.

    name, op: of the node; weights: bytes of them that are read, once
    multiplications, additions, shifts: {bits: how many}; an accumulator has 32 or 64 bits
    """

    name: str
    op: str
    multiplications: dict[int, int]
    additions: dict[int, int]
    shifts: dict[int, int]
    weights: int

    def picojoules(self, table: str = "horowitz") -> float:
        """Of the arithmetic, by a table of TABLES. Widths cost as the next one there; beyond 32
        bits in proportion, and for multiplications by the square.

        Raises ValueError for other tables.
        """
        if table not in TABLES:
            raise ValueError(f"unknown table {table!r}; choose from {', '.join(TABLES)}")
        return sum(
            count * _energy(TABLES[table], kind, bits)
            for kind, counts in self.counts.items()
            for bits, count in counts.items()
        )

    @property
    def counts(self) -> dict[str, dict[int, int]]:
        """By kind, as tables have them."""
        return {
            "multiply": self.multiplications, "add": self.additions, "shift": self.shifts
        }  # fmt: skip


@dataclass(frozen=True)
class Cost:
    """What the products of a graph cost: `ops`, one by one; `str` is a table."""

    ops: tuple[OpCost, ...]

    def picojoules(self, table: str = "horowitz") -> float:
        """Energy of one inference in picojoules, by a table of costs an operation (`TABLES`).

        Raises ValueError for an unknown table.
        """
        return sum(each.picojoules(table) for each in self.ops)

    @property
    def area(self) -> float:
        """Square micrometres of one unit of 32 bits ("aladdin") of each kind that is needed."""
        kinds = {
            k for each in self.ops for k, counts in each.counts.items() if any(counts.values())
        }
        return sum(AREAS[kind] for kind in kinds)

    @property
    def weights(self) -> int:
        """Bytes of weights that are read."""
        return sum(each.weights for each in self.ops)

    def __str__(self) -> str:
        head = ("node", "multiplications", "additions", "shifts", "bytes of weights", "nJ")
        rows = [head, *(_row(each) for each in self.ops)]
        rows.append(("all", "", "", "", str(self.weights), f"{self.picojoules() / 1e3:.3f}"))
        wide = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = [
            "  ".join(cell.ljust(n) for cell, n in zip(row, wide, strict=True)) for row in rows
        ]
        return "\n".join(line.rstrip() for line in lines)


def cost(graph: fx.GraphModule, *, terms_by_shifts: int = 2) -> Cost:
    """Count what the products of an integer graph cost, each for one run at its example's sizes.

    graph: as `bs.graph.lower(f, "integer")` gives
    terms_by_shifts: weights of which every number is the sum of at most so many signed powers of
        two are multiplied by shifts and additions; weights that are 0 then cost nothing. Others,
        and products of two activations, are multiplications of their codes' width

    Linear layers, convolutions (cells that meet padding included), matrix and
    elementwise products, and attention's two products are counted; requantizing, tables, norms and
    softmax are a few operations for each result, and are not.

    Raises ValueError for a negative number of terms; NotIntegerError for sizes that are not known.
    """
    if terms_by_shifts < 0:
        raise ValueError(
            "terms_by_shifts (a number of powers of two) must be an integer >= 1, got "
            f"{terms_by_shifts}"
        )
    ops = []
    for node in graph.graph.nodes:
        name = name_of(node)
        if name in _PRODUCTS:
            ops.append(_cost_of(graph, node, name, terms_by_shifts))
    return Cost(tuple(ops))


def _cost_of(graph: fx.GraphModule, node: fx.Node, name: str, most: int) -> OpCost:
    names = INTEGER_OPS[name].signature.names
    inputs: dict[str, Any] = dict(zip(names, node.args, strict=True))
    wide = 32 if inputs.get("largest", 0) <= INT32_MAX else 64
    y = _size(node)
    if name in LAYERS:
        weight = get(graph, inputs["weight"]).detach()
        return _layer(node, name, inputs, weight, y, most, wide)
    if name == "integer_attention":
        q, v = _size(inputs["query"]), _size(inputs["value"])
        many = prod(q) * v[-2] + prod(y) * v[-2]
        return OpCost(node.name, name, {8: many}, {wide: many}, {}, 0)
    inner = _size(inputs["a"])[-1] if name == "integer_matmul" else 1
    many = prod(y) * inner
    bits = max(_bits(inputs["a"]), _bits(inputs["b"]))
    additions = {wide: many} if name == "integer_matmul" else {}
    return OpCost(node.name, name, {bits: many}, additions, {}, 0)


def _layer(
    node: fx.Node, name: str, inputs: dict[str, Any], weight: Tensor, y: list[int], most: int,
    wide: int,
) -> OpCost:  # fmt: skip
    """Of every weight as many products as its row has places; additions are of the accumulator."""
    places = _places(inputs, y, name)
    bytes_of = weight.numel() * weight.element_size()
    biases = 0 if inputs["bias"] is None else prod(y)
    parts = terms(weight)
    if int(parts.amax()) <= most:
        every = int(parts.sum()) * places
        shifts = int((parts - (weight & 1).to(torch.int64)).sum()) * places
        return OpCost(node.name, name, {}, {wide: every + biases}, {wide: shifts}, bytes_of)
    many = weight.numel() * places
    bits = max(_bits(inputs["x"]), 8 * weight.element_size())
    return OpCost(node.name, name, {bits: many}, {wide: many + biases}, {}, bytes_of)


def _places(inputs: dict[str, Any], y: list[int], name: str) -> int:
    """How often each weight is used: once for each row of x, or place of the kernel."""
    if name == "integer_linear":
        return prod(y[:-1])
    if inputs["transposed"]:
        return prod(_size(inputs["x"])[:-1])
    return prod(y[:-1])


def _bits(node: Any) -> int:
    tensor: Any = value(node)
    return int(8 * tensor.element_size())


def _size(node: Any) -> list[int]:
    sizes = shape(node)
    numbers = [int(n) for n in sizes or () if isinstance(n, int)]
    if sizes is None or len(numbers) != len(sizes):
        raise NotIntegerError(
            f"{describe(node)} has unknown sizes: export with the sizes to count for"
        )
    return numbers


def _energy(table: dict[tuple[str, int], float], kind: str, bits: int) -> float:
    width = next((n for n in (8, 32) if bits <= n and (kind, n) in table), 32)
    beyond = max(bits / 32, 1.0)
    return table[kind, width] * (beyond**2 if kind == "multiply" else beyond)


def _row(each: OpCost) -> tuple[str, ...]:
    counts = (each.multiplications, each.additions, each.shifts)
    texts = (", ".join(f"{n} of {bits} bits" for bits, n in c.items() if n) for c in counts)
    return each.name, *texts, str(each.weights), f"{each.picojoules() / 1e3:.3f}"
