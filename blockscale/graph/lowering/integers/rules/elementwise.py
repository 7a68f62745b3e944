# SPDX-License-Identifier: BSD-3-Clause
"""Sums, products, bounds, functions of single codes, and tensors that are joined."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from blockscale.graph.constants import get, is_constant, put_constant
from blockscale.graph.lowering.integers.builder import OF_ANY_STEP, Builder, Task, Value
from blockscale.graph.lowering.integers.fixed import Fixed, NotIntegerError, Own, sums
from blockscale.graph.nodes import aten, call
from blockscale.kernels.registry import use
from blockscale.ops.fused import FUSED
from blockscale.ops.integer.elementwise import quantize

_MOST = 40  # bits by which two exponents may differ: int64 holds codes so far apart


def add(builder: Builder, task: Task) -> Value:
    """Both sides under the smaller exponent, by a shift to the left."""
    return _add_signed(builder, task, 1)


def sub(builder: Builder, task: Task) -> Value:
    """As add, of the negative."""
    return _add_signed(builder, task, -1)


def _add_signed(builder: Builder, task: Task, sign: int) -> Value:
    if task.settings.get("alpha", 1) != 1:
        raise NotIntegerError(f"{task.what} scales what it adds")
    a, b = (builder.operand(task, each) for each in task.operands)
    least = min(a.fixed.exponent, b.fixed.exponent)
    shifts = [value.fixed.exponent - least for value in (a, b)]
    if max(shifts) > _MOST:
        raise NotIntegerError(
            f"{task.what} adds values whose scales differ by 2^{max(shifts)}, over 2^{_MOST}: was "
            f"one chosen from zeros?"
        )
    largest = (a.fixed.largest << shifts[0]) + (b.fixed.largest << shifts[1])
    own = _own_sum(a.fixed, b.fixed)
    acc = builder.add_sums(
        task, sums(least, largest, task.what), None if own is None else own.largest
    )
    args = [a.node, b.node, a.fixed.zero, b.fixed.zero, *shifts, sign, largest]
    total = builder.finish(task, "add", args, acc)
    return total if task.y.fmt else total._replace(fixed=replace(total.fixed, own=own))


def _own_sum(a: Fixed, b: Fixed) -> Own | None:
    """Of a sum, in the smaller of the two steps of each channel."""
    if a.own is None and b.own is None:
        return None
    none, least = torch.zeros(1, dtype=torch.int64), min(a.exponent, b.exponent)
    steps = [each.exponent + (none if each.own is None else each.own.apart) for each in (a, b)]
    apart = torch.minimum(*steps)
    shifts = [int((each - apart).max()) for each in steps]
    return Own(apart - least, (a.steps << shifts[0]) + (b.steps << shifts[1]))


def mul(builder: Builder, task: Task) -> Value:
    """Products have the sum of the exponents."""
    a, b = (builder.operand(task, each) for each in task.operands)
    largest = a.fixed.largest * b.fixed.largest
    acc = sums(a.fixed.exponent + b.fixed.exponent, largest, task.what)
    builder.add_sums(task, acc)
    return builder.finish(task, "mul", [a.node, b.node, a.fixed.zero, b.fixed.zero, largest], acc)


def div(builder: Builder, task: Task) -> Value:
    """By what the model holds: one number, such as the root of a head's size, makes a table;
    several are products with their reciprocals."""
    a, by = task.operands
    if by.fmt or not is_constant(by.data):
        raise NotIntegerError(
            f"{task.what} divides by a computed value, and integers can be divided only by "
            "constants: leave it out, or in float"
        )
    divisor: Any = by.data
    numbers = get(builder.graph, divisor).detach()
    if numbers.numel() == 1:
        settings = {"other": float(numbers)}
        return table(builder, task._replace(name="div_scalar", operands=[a], settings=settings))
    name = f"integers.{divisor.target}.reciprocal"
    reciprocal: Any = put_constant(builder.graph, name, 1.0 / numbers, like=task.node)
    return mul(builder, task._replace(operands=[a, by._replace(data=reciprocal)]))


def clamp(builder: Builder, task: Task) -> Value:
    """ReLU and its bounded kin: a range of codes, or of sums; of all numbers, another format."""
    x = builder.operand(task, task.operands[0])
    acc = Fixed(x.fixed.exponent, 0, -x.fixed.largest, x.fixed.largest)
    bounds = _bounds(task)
    if task.y.fmt or not x.fixed.fmt:
        result = builder.finish(task, "rescale", [x.node, x.fixed.zero], acc, bounds=bounds)
        own = x.fixed.own if not task.y.fmt and {*bounds} <= OF_ANY_STEP else None
        return result._replace(fixed=replace(result.fixed, own=own))
    return _of_codes(builder, task, x)


def _of_codes(builder: Builder, task: Task, x: Value) -> Value:
    """Codes kept between two numbers, in their own format. Raises where those are between steps."""
    zero = x.fixed.zero
    ends = []
    for bound, end in zip(_bounds(task), (x.fixed.low, x.fixed.high), strict=True):
        whole = bound * 2.0**-x.fixed.exponent + zero
        ends.append(end if math.isinf(bound) else whole)
    if any(end != round(end) for end in ends):
        raise NotIntegerError(
            f"{task.what}: a bound of {_bounds(task)} is not a multiple of the step "
            f"{2.0**x.fixed.exponent} of its input: use a smaller scale there, or ReLU"
        )
    low, high = (max(x.fixed.low, min(int(end), x.fixed.high)) for end in ends)
    bounds = Fixed(x.fixed.exponent, zero, low, high, x.fixed.fmt)
    shift = torch.zeros(1, dtype=torch.int32)
    args = [x.node, zero, shift, zero, low, high, x.fixed.fmt]
    return builder.emit(task.node, "rescale", args, bounds)


def _bounds(task: Task) -> tuple[float, float]:
    name, s = task.name, task.settings
    if name == "requantize":
        return -math.inf, math.inf
    if name == "relu":
        return 0.0, math.inf
    if name == "relu6":
        return 0.0, 6.0
    low, high = (s.get("min_val"), s.get("max_val")) if name == "hardtanh" else (s["min"], s["max"])
    return -math.inf if low is None else low, math.inf if high is None else high


def table(builder: Builder, task: Task) -> Value:
    """Any function of one number: its value for each code that there is, as the reference has."""
    x = builder.operand(task, task.operands[0])
    y = builder.fixed(task.y, f"the result of {task.what}")
    if x.fixed.bits > 16 or not x.fixed.fmt:
        raise NotIntegerError(
            f"{task.what} takes sums of {x.fixed.bits} bits, too many for a table: set a "
            f"format for its input, by a rule '{task.rule}' with an input such as "
            "'int8:tensor:pow2/nearest'"
        )
    if y is None:
        raise NotIntegerError(
            f"{task.what} has no format for its result: set one, by a rule '{task.rule}' with "
            "an output such as 'int8:tensor:pow2/nearest'"
        )
    return builder.emit(task.node, "look_up", [x.node, _entries(task, x.fixed, y)], y)


def _entries(task: Task, x: Fixed, y: Fixed) -> Tensor:
    """The result for each pattern of x's bits: what the op's own reference gives for the value that
    the code means, quantized."""
    patterns = torch.arange(2**x.bits)
    negative = (patterns >> (x.bits - 1) == 1) & (x.low < 0)
    codes = patterns - negative.to(torch.int64) * 2**x.bits
    values = (codes - x.zero).to(torch.float32) * 2.0**x.exponent
    with use("reference"), torch.no_grad():
        results: Any = FUSED[task.name].body(values, **task.settings)
        return quantize.reference(results, y.exponent, y.zero, y.fmt)


_CLAMPS = ("relu", "relu6", "hardtanh", "clamp", "requantize")
_TABLES = (
    *("leaky_relu", "elu", "hardsigmoid", "hardswish", "sigmoid", "tanh", "gelu", "silu", "mish"),
    *("softplus", "exp", "sqrt", "rsqrt", "neg", "abs", "reciprocal", "add_scalar", "sub_scalar"),
    *("rsub_scalar", "mul_scalar", "div_scalar", "pow_scalar"),
)
# Tensors that become one: all in one format, then joined.


def cat(builder: Builder, task: Task) -> Value:
    """Values of one meaning are joined as they are, others brought to the result's format."""
    parts = [builder.operand(task, each) for each in task.operands]
    y = builder.fixed(task.y, f"the result of {task.what}")
    if y is None:
        y = _meaning_of_all(parts, task.what, task.name)
    alike = [
        part if _alike(part.fixed, y) else builder.to_format(task.node, part, y) for part in parts
    ]
    target = aten.cat.default if task.name == "cat" else aten.stack.default
    args = ([part.node for part in alike], task.settings["dim"])
    return Value(call(builder.graph, target, args, like=task.node), y)


def join(builder: Builder, node: fx.Node, sources: Sequence[fx.Node], what: str) -> Value:
    """Codes that torch's own op joins: they mean the same in all."""
    parts = [builder.value(each) for each in sources]
    if any(part is None for part in parts):
        raise NotIntegerError(f"{what} joins codes and floats: set a format for all its inputs")
    values = [part for part in parts if part is not None]
    y = _meaning_of_all(values, what, "cat")
    args = ([part.node for part in values], *node.args[1:])
    return Value(call(builder.graph, node.target, args, node.kwargs, like=node), y)  # type: ignore[arg-type]


def _meaning_of_all(parts: Sequence[Value], what: str, name: str) -> Fixed:
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


RULES = {
    "add": add,
    "sub": sub,
    "mul": mul,
    "div": div,
    **dict.fromkeys(_CLAMPS, clamp),
    **dict.fromkeys(_TABLES, table),
    "cat": cat,
    "stack": cat,
}
