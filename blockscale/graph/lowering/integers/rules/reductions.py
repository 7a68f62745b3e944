# SPDX-License-Identifier: BSD-3-Clause
"""Pooling and means."""

import math
from dataclasses import replace
from typing import Any

from blockscale.graph.lowering.integers.builder import Builder, Task, Value
from blockscale.graph.lowering.integers.fixed import Fixed, NotIntegerError, sums
from blockscale.graph.nodes import shape


def _each(sizes: Any, count: int) -> list[int]:
    numbers = [int(n) for n in (sizes if isinstance(sizes, list | tuple) else [sizes])]
    return numbers * count if len(numbers) == 1 else numbers


def max_pool(builder: Builder, task: Task) -> Value:
    """The largest code is the code of the largest."""
    x, s, count = builder.operand(task, task.operands[0]), task.settings, int(task.name[-2])
    kernel = _each(s["kernel_size"], count)
    stride = _each(s["stride"], count) if s["stride"] else kernel
    args = [x.node, kernel, stride, _each(s["padding"], count), _each(s["dilation"], count),
            s["ceil_mode"]]  # fmt: skip
    own = x.fixed.own
    if own is not None and own.apart.shape[-count:].numel() > 1:
        own = None
    result = builder.emit(task.node, "max_pool", args, replace(x.fixed, own=own))
    y = builder.fixed(task.y, f"the result of {task.what}")
    return result if y is None else builder.to_format(task.node, result, y)


def average_pool(builder: Builder, task: Task) -> Value:
    """Sums of windows, over their size."""
    x, s, count = builder.operand(task, task.operands[0]), task.settings, int(task.name[-2])
    if s["ceil_mode"] or s.get("divisor_override") or not s["count_include_pad"]:
        raise NotIntegerError(
            f"{task.what} divides by a number that varies: leave ceil_mode, divisor_override "
            "and count_include_pad as they are by default"
        )
    kernel = _each(s["kernel_size"], count)
    stride = _each(s["stride"], count) if s["stride"] else kernel
    return _pool(builder, task, x, kernel, stride, _each(s["padding"], count))


def adaptive_pool(builder: Builder, task: Task) -> Value:
    """Windows of one size, that of the example."""
    x, count = builder.operand(task, task.operands[0]), int(task.name[-2])
    sizes = shape(task.operands[0].data)
    kernel = []
    counts = _each(task.settings["output_size"], count)
    for n, parts in zip(sizes[-count:] if sizes else (), counts, strict=True):
        if not isinstance(n, int) or n % parts:
            raise NotIntegerError(
                f"{task.what} divides {n} into {parts} windows of different or unknown sizes: "
                f"export with a fixed size that {parts} divides"
            )
        kernel.append(n // parts)
    return _pool(builder, task, x, kernel, kernel, [0] * count)


def _pool(
    builder: Builder, task: Task, x: Value, kernel: list[int], stride: list[int], pad: list[int]
) -> Value:
    args = [x.node, kernel, stride, pad, x.fixed.zero]
    fixed, own = x.fixed, x.fixed.own
    if own is not None and own.apart.shape[-len(kernel) :].numel() > 1:
        fixed = replace(fixed, own=None)  # windows take in several channels
    return _mean(builder, task, "sum_pool", args, fixed, math.prod(kernel))


def mean(builder: Builder, task: Task) -> Value:
    """Sums over dimensions, over how many values they have."""
    x, s = builder.operand(task, task.operands[0]), task.settings
    sizes = shape(task.operands[0].data) or ()
    dims = [d % len(sizes) for d in _each(s["dim"], 1)] if s["dim"] else [*range(len(sizes))]
    count = [sizes[d] for d in dims]
    if not all(isinstance(n, int) for n in count):
        raise NotIntegerError(
            f"{task.what} is over a dimension of dynamic size: export with a fixed size there"
        )
    args = [x.node, dims, bool(s["keepdim"]), x.fixed.zero]
    divides, fixed = task.name == "mean", replace(x.fixed, own=None)
    return _mean(builder, task, "sum_over", args, fixed, math.prod(count), divides=divides)


def _mean(
    builder: Builder,
    task: Task,
    op: str,
    args: list[Any],
    x: Fixed,
    count: int,
    *,
    divides: bool = True,
) -> Value:
    """A power of two is a smaller exponent; any other divides, and so needs a format."""
    power = divides and count & (count - 1) == 0
    least = x.exponent - (count.bit_length() - 1 if power else 0)
    acc = sums(least, x.largest * count, task.what)
    own = None if x.own is None else x.own._replace(largest=x.own.largest * count)
    builder.add_sums(task, acc, None if own is None else own.largest)
    divisor = 1 if power or not divides else count
    if divisor > 1 and not task.y.fmt:
        raise NotIntegerError(
            f"{task.what} averages {count} values, and only a power of two can be divided by "
            f"exactly: set a format for its result, by a rule '{task.rule}' with an output"
        )
    result = builder.finish(task, op, [*args, acc.largest, divisor], acc)
    return result if task.y.fmt else result._replace(fixed=replace(result.fixed, own=own))


RULES = {
    **{f"max_pool{n}d": max_pool for n in (1, 2, 3)},
    **{f"avg_pool{n}d": average_pool for n in (1, 2, 3)},
    **{f"adaptive_avg_pool{n}d": adaptive_pool for n in (1, 2)},
    "mean": mean,
    "sum": mean,
}
