# SPDX-License-Identifier: BSD-3-Clause
"""Layer norm and RMS norm of codes: an integer square root, one division a row, products, shifts.

I-BERT (Kim et al. 2021, arXiv:2101.01321, sec. 3.6) takes the standard deviation with an integer
square root, sums in int32, and leaves the weight to a float scale. Here the variance is exact
(n * sum of squares - square of the sum), the root has 30 bits, and weight and bias are integers.
"""

from typing import Any

import torch
from torch import Tensor

from blockscale.ops.integer.define import integer_op
from blockscale.ops.integer.shifts import ended, ended_like

FRACTION = 15  # bits of a normalized value behind the point
_ROOT = 62  # bits of what the root is taken of: it has half as many


def bit_length(x: Tensor) -> Tensor:
    """x [...] int64, not negative -> how many bits it needs [...] int64."""
    length = torch.zeros_like(x)
    for step in (32, 16, 8, 4, 2, 1):
        more = x >> step > 0
        length = length + more * step
        x = torch.where(more, x >> step, x)
    return length + x


def square_root(x: Tensor) -> Tensor:
    """x [...] int64 below 2^62 -> floor(sqrt(x)) [...] int64, bit by bit."""
    root = torch.zeros_like(x)
    for bit in range(_ROOT // 2 - 1, -1, -1):
        trial = root + (1 << bit)
        root = torch.where(trial * trial <= x, trial, root)
    return root


def normalized(x: Tensor, centered: bool, epsilon: int) -> Tensor:
    """x [..., n] int64 -> (x - mean) / sqrt(variance) in units of 2^-FRACTION [..., n] int64.

    epsilon: n^2 * eps in units of the square of x's step; |x| * 2n < 2^31 is the caller's to prove
    """
    n = x.shape[-1]
    total = x.sum(-1, keepdim=True) if centered else torch.zeros_like(x[..., :1])
    away = n * x - total
    variance = (n * (x * x).sum(-1, keepdim=True) - total * total + epsilon).clamp(min=1)
    half = (_ROOT - bit_length(variance)) >> 1
    root = square_root(variance << (2 * half))  # in [2^30, 2^31)
    inverse = torch.div(1 << (_ROOT - 1), root, rounding_mode="floor")
    right = _ROOT - 1 - FRACTION - half
    return (away * inverse + (torch.ones_like(right) << (right - 1))) >> right


def _norm_shape(x: Tensor, *others: Any) -> Tensor:
    return ended_like(x, others[-5], others[-1], torch.int64)


@integer_op(shape=_norm_shape)
def layer_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    x_zero: int,
    centered: bool,
    epsilon: int,
    shift: Tensor,
    zero: int,
    low: int,
    high: int,
    fmt: str,
) -> Tensor:
    """Codes or sums x [..., n] -> codes [..., n]: normalized * weight + bias, ended.

    weight: [n] int32; bias: [n] int64, in units of the products
    centered: a layer norm; else an RMS norm, which takes no mean off
    epsilon: as `normalized`
    """
    acc = normalized(x.to(torch.int64) - x_zero, centered, epsilon)
    if weight is not None:
        acc = acc * weight.to(torch.int64)
    if bias is not None:
        acc = acc + bias
    return ended(acc, shift, zero, low, high, fmt)
