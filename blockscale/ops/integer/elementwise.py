# SPDX-License-Identifier: BSD-3-Clause
"""Ops of single codes: sums, products, tables; and where floats come in and go out, the only ones
that know any."""

from typing import Any

import torch
from torch import Tensor

from blockscale.core.arithmetic.precision import pow2
from blockscale.core.arithmetic.sums import accumulator
from blockscale.core.parse import parse
from blockscale.core.rounding import DETERMINISTIC
from blockscale.ops.integer.define import integer_op
from blockscale.ops.integer.shifts import centered, ended, ended_like


def _shape_of_two(a: Tensor, b: Tensor, *others: Any) -> Tensor:
    *_, largest, shift, _, _, _, fmt = others
    dtype = accumulator(largest)
    return ended_like(a.to(dtype) + b.to(dtype), shift, fmt)


@integer_op(shape=_shape_of_two)
def add(
    a: Tensor,
    b: Tensor,
    a_zero: int,
    b_zero: int,
    a_shift: int,
    b_shift: int,
    b_sign: int,
    largest: int,
    shift: Tensor,
    zero: int,
    low: int,
    high: int,
    fmt: str,
) -> Tensor:
    """Codes or sums a, b that broadcast -> (a << a_shift) + b_sign * (b << b_shift), ended.

    a_shift, b_shift: to the smaller of their exponents, not negative; b_sign: 1, or -1 for a - b
    """
    dtype = accumulator(largest)
    x, y = centered(a, a_zero, dtype) << a_shift, centered(b, b_zero, dtype) << b_shift
    return ended(x + b_sign * y, shift, zero, low, high, fmt)


@integer_op(shape=_shape_of_two)
def mul(
    a: Tensor,
    b: Tensor,
    a_zero: int,
    b_zero: int,
    largest: int,
    shift: Tensor,
    zero: int,
    low: int,
    high: int,
    fmt: str,
) -> Tensor:
    """Codes a, b that broadcast -> their product, ended."""
    dtype = accumulator(largest)
    acc = centered(a, a_zero, dtype) * centered(b, b_zero, dtype)
    return ended(acc, shift, zero, low, high, fmt)


@integer_op
def look_up(x: Tensor, table: Tensor) -> Tensor:
    """Codes x [...] -> table[x mod the table's size] [...]: a function of all codes that there are.

    table: 256 codes for x of 8 bits, 65536 for 16, by the bits of a code: negative codes come last
    """
    return table[x.to(torch.int64) & (table.shape[0] - 1)]


@integer_op
def embedding(weight: Tensor, indices: Tensor) -> Tensor:
    """Codes weight [rows, n], indices [...] -> codes [..., n]: rows as they are."""
    return torch.nn.functional.embedding(indices, weight)


@integer_op
def quantize(x: Tensor, exponent: int, zero: int, fmt: str) -> Tensor:
    """Floats [...] -> codes [...] of fmt, one an element: clamp(round(x / 2^exponent) + zero).

    As `bs.quantize` under that scale, bit for bit; NaN is 0.
    """
    form = parse(fmt)
    step = pow2(torch.full((), exponent, dtype=torch.int32))
    point = torch.full((), zero, dtype=torch.int32) if form.asym else None
    y = x.to(torch.float32) / step
    return form.element.encode(y, DETERMINISTIC[form.rounding], point, form.wide)


@integer_op(shape=lambda x, *_: x.new_empty(x.shape, dtype=torch.float32))
def dequantize(x: Tensor, zero: int, exponent: int) -> Tensor:
    """Codes or sums [...] -> (x - zero) * 2^exponent [...] float32, rounded once, in order."""
    wide = (x.to(torch.int64) - zero).to(torch.float32).contiguous()
    return wide * pow2(torch.full((), exponent, dtype=torch.int32))
