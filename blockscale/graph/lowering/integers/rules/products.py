# SPDX-License-Identifier: BSD-3-Clause
"""Layers with weights, and products of two activations."""

import math
import operator
from typing import Any

import torch
from torch import Tensor

from blockscale.core.arithmetic.precision import pow2
from blockscale.core.arithmetic.sums import SumInteger
from blockscale.graph.lowering.integers.builder import Builder, Task, Value
from blockscale.graph.lowering.integers.fixed import INT64_MAX, Fixed, NotIntegerError, sums
from blockscale.graph.lowering.integers.moves import pieces
from blockscale.graph.lowering.integers.weights import narrowest, weight_of
from blockscale.graph.nodes import calls, shape
from blockscale.ops.integer.softmax import FRACTION, POWER

_BOUNDS = {"": None, "relu": (0.0, math.inf), "relu6": (0.0, 6.0)}


def linear(builder: Builder, task: Task) -> Value:
    """Sums of products and the bias, in steps of the input times the weight.

    Sums that become codes behind moves end in those: each piece of a product of several layers.
    """
    x = builder.operand(task, task.operands[0])
    codes, exponents = weight_of(builder, task, task.operands[1])
    bias, acc, above = _sums(builder, task, x, codes, exponents)
    args = [x.node, codes, bias, x.fixed.zero, acc.largest]
    bounds = activation(task)
    first_outputs = [user for user in task.node.users if calls(user, operator.getitem)]
    parts = pieces(first_outputs[0]) if len(first_outputs) == 1 and not task.y.fmt else []
    last = None
    for part in parts:
        rows = slice(part.first, part.last)
        some = [x.node, codes[rows], None if bias is None else bias[rows], *args[3:]]
        of = task._replace(y=part.by)
        last = builder.finish(of, "linear", some, acc, above[rows], bounds)
        builder.remember(part.node, last)
        if calls(part.node, operator.getitem) and part.node is not first_outputs[0]:
            builder.remember(part.node.args[0], last)  # type: ignore[arg-type]  # what cuts it
    return last or builder.finish(task, "linear", args, acc, above, bounds)


def conv(builder: Builder, task: Task) -> Value:
    """As linear, over windows. x and the result are channels last."""
    x, s = builder.operand(task, task.operands[0]), task.settings
    codes, exponents = weight_of(builder, task, task.operands[1])
    sizes, transposed = [int(n) for n in s["shape"]], s["transposed"]
    if transposed:
        n, groups = sizes[1] * s["groups"], s["groups"]
        exponents = exponents.expand(n) if exponents.numel() == 1 else exponents
    else:
        groups = s["groups"]
    bias, acc, above = _sums(builder, task, x, codes, exponents)
    args = [x.node, codes, bias, sizes, [*s["stride"]], [*s["padding"]], [*s["dilation"]],
            groups, transposed, [*s["output_padding"]], x.fixed.zero, acc.largest]  # fmt: skip
    return builder.finish(task, "conv", args, acc, above, activation(task))


def activation(task: Task) -> tuple[float, float] | None:
    """The bounds of the activation inside a product. Raises NotIntegerError for others."""
    name = task.settings.get("activation", "")
    if name not in _BOUNDS:
        raise NotIntegerError(
            f"{task.what} ends in {name} of its sums, which needs codes: set formats, by a "
            f"rule 'op:{name.removesuffix('_tanh')}' with an input and an output"
        )
    return _BOUNDS[name]


def _sums(
    builder: Builder, task: Task, x: Value, codes: Tensor, of_weight: Tensor
) -> tuple[Tensor | None, Fixed, Tensor]:
    """The bias [n] or None, what the sums mean, and how far exponents are above the least."""
    exponents = of_weight.to(torch.int64) + x.fixed.exponent
    bias = builder.constant(task.settings["bias"], f"the bias of {task.what}")
    bits = 52 if codes.dtype in (torch.int32, torch.int64) else 32
    offset = None if bias is None else bias_of(bias, exponents, task.what, bits)
    acc = sums(int(exponents.min()), largest_sum(codes, offset, x.fixed.largest), task.what)
    sums(int(exponents.max()), acc.largest, task.what)
    builder.add_sums(task, acc)
    return offset, acc, exponents - exponents.min()


def largest_sum(weight: Tensor, bias: Tensor | None, largest_input: int) -> int:
    """The largest |sum of products + bias| that inputs up to `largest_input` can give.

    weight: [n, ...] integers, bias [n]. Below 2^31 no sum, in any order, leaves int32; up to 2^24
    none rounds in float32.
    """
    rows = weight.to(torch.int64).abs().flatten(1).sum(1)
    if rows.numel() and int(rows.max()) * largest_input > INT64_MAX >> 1:
        return int(rows.max()) * largest_input  # which no sums hold
    totals = rows * largest_input
    if bias is not None:
        totals = totals + bias.to(torch.int64).abs()
    return int(totals.max()) if totals.numel() else 0


def bias_of(bias: Tensor, exponents: Tensor, what: str, bits: int = 32) -> Tensor:
    """bias [n] float -> round_half_even(bias * 2^-exponent) [n] int32 (docs/numerics.md, 7.1).

    bits: 52 beside weights of more than 16 bits, whose steps are so small: then int64

    Raises NotIntegerError where the bias is not finite or needs more bits.
    """
    kind, unit = SumInteger(32), pow2(exponents.clamp(-149, 127).to(torch.int32))
    values = bias.detach().to(torch.float32)
    if bits > 32 and bool(((values.to(torch.float64) / unit).abs() < 2.0**bits).all()):
        return (values.to(torch.float64) / unit).round().to(torch.int64)
    if not bool(kind.in_range(values, unit).all()):
        worst = float((values / unit).abs().nan_to_num(torch.inf).max())
        raise NotIntegerError(
            f"{what}: the bias is {worst:.4g} steps of the sums, more than int32 holds: "
            f"use a larger input or weight scale"
        )
    return kind.encode(values, unit)


def matmul(builder: Builder, task: Task) -> Value:
    """Sums of products of two activations; their number is known or bounded by the example's."""
    a, b = (builder.operand(task, each) for each in task.operands[:2])
    count = _inner(task)
    acc = sums(
        a.fixed.exponent + b.fixed.exponent, a.fixed.largest * b.fixed.largest * count, task.what
    )
    builder.add_sums(task, acc)
    args = [a.node, b.node, a.fixed.zero, b.fixed.zero, acc.largest]
    return builder.finish(task, "matmul", args, acc)


def _inner(task: Task) -> int:
    """How many products a sum has at most; where that is free, as many as int32 takes is not
    provable: 2^15."""
    sizes: Any = shape(task.operands[0].data)
    last = None if sizes is None else sizes[-1]
    return last if isinstance(last, int) else 2**15


def attention(builder: Builder, task: Task) -> Value:
    """Scores, their softmax in units of 2^-8, its product with the values."""
    q, k, v = (builder.operand(task, each) for each in task.operands)
    for name, value in (("query", q), ("key", k), ("value", v)):
        if value.fixed.bits != 8:
            raise NotIntegerError(
                f"{task.what} takes a {name} of {value.fixed.bits} bits: set a format of 8 "
                "bits, by a rule 'op:scaled_dot_product_attention' with an input such as "
                "'int8:tensor:pow2/nearest'"
            )
    s, depth = task.settings, shape(task.operands[0].data)[-1]  # type: ignore[index]
    mask = s["mask"]
    if mask is not None and mask.meta["val"].dtype != torch.bool:
        raise NotIntegerError(
            f"{task.what} adds a mask of floats: use a mask of bools, which keys are seen"
        )
    scale = 1 / math.sqrt(depth) if s["scale"] is None else s["scale"]
    factor, right, table = exponential(q.fixed.exponent + k.fixed.exponent, scale, task.what)
    largest = q.fixed.largest * k.fixed.largest * depth
    builder.add_sums(task, sums(q.fixed.exponent + k.fixed.exponent, largest, task.what))
    acc = sums(v.fixed.exponent - 8, 2**16 * v.fixed.largest, task.what)
    zeros = [each.fixed.zero for each in (q, k, v)]
    args = [q.node, k.node, v.node, mask, s["causal"], zeros, factor, right, table]
    return builder.finish(task, "attention", args, acc)


def exponential(step: int, scale: float, what: str) -> tuple[int, int, Tensor]:
    """factor, right and table of blockscale.ops.integer.softmax.powers for scores under 2^step."""
    if not 0 < scale < math.inf:
        raise NotIntegerError(f"{what} scales its scores by {scale}: expected a number above 0")
    exact = scale * math.log2(math.e) * 2.0 ** (step + FRACTION)
    mantissa, whole = math.frexp(exact)
    factor, right = round(mantissa * 2**12), 12 - whole
    if not 0 <= right <= 62:
        raise NotIntegerError(
            f"{what} has scores in steps of 2^{step}, too far from 1 for an integer exponential"
        )
    entries = 2.0 ** (POWER - torch.arange(2**FRACTION, dtype=torch.float64) / 2**FRACTION)
    return factor, right, entries.round().to(torch.int32)


def embedding(builder: Builder, task: Task) -> Value:
    """Rows of codes, as they are; rows of several scales are shifted to the smallest beforehand."""
    codes, exponents = weight_of(builder, task, task.operands[0])
    least = int(exponents.min())
    wide = codes.to(torch.int64) << (exponents.to(torch.int64) - least).clamp(0, 40)[:, None]
    largest = int(wide.abs().max())
    if largest > 2**31 - 1:
        raise NotIntegerError(
            f"the table of {task.what} has rows whose scales differ by 2^"
            f"{int(exponents.max()) - least}, more than int32 holds: use a weight with 'tensor'"
        )
    dtype = narrowest(wide)
    fixed = sums(least, largest, task.what)
    result = builder.emit(task.node, "embedding", [wide.to(dtype), task.settings["indices"]], fixed)
    y = builder.fixed(task.y, f"the result of {task.what}")
    return result if y is None else builder.to_format(task.node, result, y)


RULES = {
    "linear": linear,
    "conv": conv,
    "matmul": matmul,
    "bmm": matmul,
    "sdpa": attention,
    "embedding": embedding,
}
