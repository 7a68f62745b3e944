# SPDX-License-Identifier: BSD-3-Clause
"""Reductions over windows and dimensions."""

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.arithmetic.sums import accumulator
from blockscale.core.parse import parse
from blockscale.ops.integer.define import integer_op
from blockscale.ops.integer.shifts import centered, divided, ended


@integer_op
def max_pool(
    x: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil_mode: bool,
) -> Tensor:
    """Codes or sums x [batch, n, *size] -> the largest of each window: the codes' own order.

    What lies outside of x is smaller than any code.
    """
    wide = x.to(torch.int32)
    if len(kernel) == 1:  # torch has none of integers
        args = ([1, *kernel], [1, *stride], [0, *padding], [1, *dilation], ceil_mode)
        return F.max_pool2d(wide.unsqueeze(-2), *args).squeeze(-2).to(x.dtype)
    run = F.max_pool2d if len(kernel) == 2 else F.max_pool3d
    return run(wide, kernel, stride, padding, dilation, ceil_mode).to(x.dtype)


@integer_op
def sum_pool(
    x: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    x_zero: int,
    largest: int,
    divisor: int,
    shift: Tensor,
    zero: int,
    low: int,
    high: int,
    fmt: str,
) -> Tensor:
    """Codes x [batch, n, *size] -> the sum of each window, over `divisor`, ended.

    divisor: of averages; a power of two is better a shift. What lies outside of x is 0.
    """
    wide = centered(x, x_zero, torch.int64)
    count = len(kernel)
    around = [p for each in reversed(padding) for p in (each, each)]
    windows = F.pad(wide, around)
    for i in range(count):
        windows = windows.unfold(2 + i, kernel[i], stride[i])
    acc = windows.sum([*range(-count, 0)])
    return _mean(acc, largest, divisor, shift, zero, low, high, fmt)


@integer_op
def sum_over(
    x: Tensor,
    dims: list[int],
    keepdim: bool,
    x_zero: int,
    largest: int,
    divisor: int,
    shift: Tensor,
    zero: int,
    low: int,
    high: int,
    fmt: str,
) -> Tensor:
    """Codes x [...] -> their sum over some dimensions, over `divisor`, ended."""
    acc = centered(x, x_zero, torch.int64).sum(dims, keepdim)
    return _mean(acc, largest, divisor, shift, zero, low, high, fmt)


def _mean(
    acc: Tensor,
    largest: int,
    divisor: int,
    shift: Tensor,
    zero: int,
    low: int,
    high: int,
    fmt: str,
) -> Tensor:
    """One rounding, of acc / (divisor * 2^shift): no intermediate is rounded."""
    if divisor == 1:
        return ended(acc.to(accumulator(largest)), shift, zero, low, high, fmt)
    form = parse(fmt)
    by = (torch.ones_like(shift, dtype=torch.int64) << shift.clamp(0, 40)) * divisor
    wide = acc << (-shift).clamp(0, 31).to(torch.int64)
    steps = divided(wide, by, form.rounding)
    return (steps + zero).clamp(low, high).to(form.element.code_dtype)
