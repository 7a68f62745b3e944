# SPDX-License-Identifier: BSD-3-Clause
"""Norms of rows, and softmax."""

import math

import torch
from torch import Tensor

from blockscale.graph.lowering.integers.builder import Builder, Task, Value
from blockscale.graph.lowering.integers.fixed import Fixed, NotIntegerError, sums
from blockscale.graph.lowering.integers.rules.products import exponential
from blockscale.graph.nodes import shape
from blockscale.ops.integer.norms import FRACTION

_WEIGHT_BITS = 15  # of the largest weight of a norm
_REACH = 2**31  # 2 * n * |x| stays below, so that differences times the inverse root fit in int64


def layer_norm(builder: Builder, task: Task) -> Value:
    """Normalized values in units of 2^-15, times an integer weight, plus an integer bias."""
    return _norm(builder, task, centered=True)


def rms_norm(builder: Builder, task: Task) -> Value:
    """As layer_norm, without a mean."""
    return _norm(builder, task, centered=False)


def _norm(builder: Builder, task: Task, *, centered: bool) -> Value:
    x, s = builder.operand(task, task.operands[0]), task.settings
    sizes = s["normalized_shape"]
    if len(sizes) != 1:
        raise NotIntegerError(
            f"{task.what} is over {len(sizes)} dimensions: only the last is supported"
        )
    n = int(sizes[0])
    if 2 * n * x.fixed.largest >= _REACH or not task.y.fmt:
        reason = "" if task.y.fmt else " and has no format for its result"
        raise NotIntegerError(
            f"{task.what} takes {n} codes up to {x.fixed.largest}{reason}: set formats of 8 "
            f"or 16 bits, by a rule '{task.rule}' with an input and an output"
        )
    eps = s["eps"] if s["eps"] is not None else float(torch.finfo(torch.float32).eps)
    epsilon = min(round(n * n * eps * 2.0 ** (-2 * x.fixed.exponent)), 2**60)
    weight, bias, exponent = _affine(builder, task)
    most = (math.isqrt(n) + 1) << FRACTION
    largest = most * (1 if weight is None else int(weight.abs().max()))
    largest += 0 if bias is None else int(bias.abs().max())
    acc = builder.add_sums(task, sums(exponent, largest, task.what))
    args = [x.node, weight, bias, x.fixed.zero, centered, epsilon]
    return builder.finish(task, "layer_norm", args, acc)


def _affine(builder: Builder, task: Task) -> tuple[Tensor | None, Tensor | None, int]:
    """Weight [n] int32 and bias [n] int64 in steps of 2^exponent, and that exponent."""
    what = f"a parameter of {task.what}"
    weight = builder.constant(task.settings["weight"], what)
    bias = builder.constant(task.settings.get("bias"), what)
    exponent, codes = -FRACTION, None
    if weight is not None:
        top = float(weight.abs().max())
        below = 0 if top == 0 else math.frexp(top)[1] - _WEIGHT_BITS
        codes = torch.ldexp(weight.double(), torch.tensor(-below)).round().to(torch.int32)
        exponent += below
    if bias is None:
        return codes, None, exponent
    offset = torch.ldexp(bias.double(), torch.tensor(-exponent)).round()
    if not bool(offset.isfinite().all()) or float(offset.abs().max()) > 2.0**52:
        raise NotIntegerError(f"{task.what} has a bias far larger than its weight, beyond 52 bits")
    return codes, offset.to(torch.int64), exponent


def softmax(builder: Builder, task: Task) -> Value:
    """Powers of two by a table and a shift, over their sum."""
    x, dim = builder.operand(task, task.operands[0]), task.settings["dim"]
    sizes = shape(task.operands[0].data)
    if sizes is None or dim not in (-1, len(sizes) - 1):
        raise NotIntegerError(f"{task.what} is over dimension {dim}: only the last is supported")
    y = builder.fixed(task.y, f"the result of {task.what}")
    if y is None or not 0 < -y.exponent < 31:
        raise NotIntegerError(
            f"{task.what} needs a format for its result: set one, by a rule 'op:softmax' with "
            "an output such as 'uint8:tensor:pow2/nearest'"
        )
    factor, right, table = exponential(x.fixed.exponent, 1.0, task.what)
    args = [x.node, factor, right, table, -y.exponent, y.zero, y.low, y.high, y.fmt]
    return builder.emit(task.node, "softmax", args, Fixed(*vars(y).values()))


RULES = {
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "softmax": softmax,
}
