# SPDX-License-Identifier: BSD-3-Clause
"""Tensors that become one: all in one format, then joined."""

from collections.abc import Sequence

from torch import fx

from blockscale.graph.lowering.integers.builder import Builder, Task, Value
from blockscale.graph.lowering.integers.fixed import Fixed, NotIntegerError
from blockscale.graph.nodes import aten, call


def cat(builder: Builder, task: Task) -> Value:
    """Values of one meaning are joined as they are, others brought to the result's format."""
    parts = [builder.operand(task, each) for each in task.operands]
    y = builder.fixed(task.y, f"the result of {task.what}")
    if y is None:
        y = _one(parts, task.what, task.name)
    made = [
        part if _alike(part.fixed, y) else builder.to_format(task.node, part, y) for part in parts
    ]
    target = aten.cat.default if task.name == "cat" else aten.stack.default
    args = ([part.node for part in made], task.settings["dim"])
    return Value(call(builder.graph, target, args, like=task.node), y)


def joined(builder: Builder, node: fx.Node, sources: Sequence[fx.Node], what: str) -> Value:
    """Codes that torch's own op joins: they mean the same in all."""
    parts = [builder.value(each) for each in sources]
    if any(part is None for part in parts):
        raise NotIntegerError(f"{what} joins codes and floats: set a format for all its inputs")
    known = [part for part in parts if part is not None]
    y = _one(known, what, "cat")
    args = ([part.node for part in known], *node.args[1:])
    return Value(call(builder.graph, node.target, args, node.kwargs, like=node), y)  # type: ignore[arg-type]


def _one(parts: Sequence[Value], what: str, name: str) -> Fixed:
    """What the integers of all mean. Raises NotIntegerError where they differ."""
    y = parts[0].fixed
    if any(not _alike(part.fixed, y) for part in parts):
        raise NotIntegerError(
            f"{what} joins tensors of different scales: set a format, by a rule 'op:{name}' "
            'with an output, or an input and "shared": true'
        )
    low, high = min(part.fixed.low for part in parts), max(part.fixed.high for part in parts)
    return Fixed(y.exponent, y.zero, low, high, y.fmt)


def _alike(a: Fixed, b: Fixed) -> bool:
    """Whether the same integer means the same in both, in one dtype."""
    return (a.exponent, a.zero, a.bits, a.low < 0) == (b.exponent, b.zero, b.bits, b.low < 0)


RULES = {"cat": cat, "stack": cat}
