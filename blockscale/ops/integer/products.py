# SPDX-License-Identifier: BSD-3-Clause
"""Products of codes: linear layers, convolutions, matrices.

All end as blockscale.ops.integer.shifts has it; `largest` is the proven bound of |sum of products +
bias|, which says what holds the sums.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.arithmetic.sums import accumulator
from blockscale.core.pack import from_stored, grouped_layout
from blockscale.ops.integer.define import integer_op
from blockscale.ops.integer.shifts import centered, ended, ended_like


def _linear_shape(x: Tensor, weight: Tensor, *others: Any) -> Tensor:
    _, _, largest, shift, _, _, _, fmt = others
    if x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"blockscale::integer_linear: x {tuple(x.shape)} has not the {weight.shape[1]} features"
            f" that the weight {tuple(weight.shape)} takes"
        )
    sums = x.new_empty((*x.shape[:-1], weight.shape[0]), dtype=accumulator(largest))
    return ended_like(sums, shift, fmt)


@integer_op(shape=_linear_shape)
def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    x_zero: int,
    largest: int,
    shift: Tensor,
    zero: int,
    low: int,
    high: int,
    fmt: str,
) -> Tensor:
    """Codes x [..., k], weight [n, k] int8 or int16, bias [n] int32 -> codes or sums [..., n].

    shift: [n] or [1], of each output
    """
    dtype = accumulator(largest)
    acc = centered(x, x_zero, dtype) @ weight.to(dtype).t()
    if bias is not None:
        acc = acc + bias.to(dtype)
    return ended(acc, shift, zero, low, high, fmt)


def _conv_shape(*arguments: Any) -> Tensor:
    *taken, shift, _, _, _, fmt = arguments
    return ended_like(_conv_sums(*taken), shift, fmt)


@integer_op(shape=_conv_shape)
def conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    shape: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    transposed: bool,
    output_padding: list[int],
    x_zero: int,
    largest: int,
    shift: Tensor,
    zero: int,
    low: int,
    high: int,
    fmt: str,
) -> Tensor:
    """Codes x [batch, *size, c], a weight as stored [n, k], bias [n] -> [batch, *size, n].

    shape: of the weight, [n, c / groups, *kernel], if transposed [c, n / groups, *kernel]; what
    lies outside of x is x_zero, which means 0.
    """
    acc = _conv_sums(
        x, weight, bias, shape, stride, padding, dilation, groups, transposed, output_padding,
        x_zero, largest,
    )  # fmt: skip
    return ended(acc, shift, zero, low, high, fmt)


def _conv_sums(
    x: Tensor, weight: Tensor, bias: Tensor | None, shape: list[int], stride: list[int],
    padding: list[int], dilation: list[int], groups: int, transposed: bool,
    output_padding: list[int], x_zero: int, largest: int,
) -> Tensor:  # fmt: skip
    dtype = accumulator(largest)
    wide = centered(x, x_zero, dtype).movedim(-1, 1)
    stored = weight.to(dtype)
    offset = None if bias is None else bias.to(dtype)
    if transposed:
        dense = from_stored(stored, grouped_layout(groups), shape)
        acc = _transposed(wide, dense, offset, stride, padding, output_padding, groups, dilation)
    else:
        dense = from_stored(stored, "channels_last", shape)
        run = (F.conv1d, F.conv2d, F.conv3d)[len(shape) - 3]
        # torch has no dilated convolution of integers: zeros between the weights are the same sum
        acc = run(wide, _dilate(dense, dilation), offset, stride, padding, 1, groups)
    return acc.movedim(1, -1).contiguous()


def _dilate(x: Tensor, apart: list[int]) -> Tensor:
    """x [n, c, *size] with apart - 1 zeros between its cells."""
    size = [d * (n - 1) + 1 for n, d in zip(x.shape[2:], apart, strict=True)]
    wide = x.new_zeros((*x.shape[:2], *size))
    cells: list[slice] = [slice(None, None, d) for d in (1, 1, *apart)]
    wide[tuple(cells)] = x
    return wide


def _transposed(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    output_padding: list[int],
    groups: int,
    dilation: list[int],
) -> Tensor:
    """A transposed convolution as a convolution of x with zeros between its cells (Dumoulin and
    Visin 2016, sec. 4.6), as torch has none of integers."""
    c, each = weight.shape[:2]
    kernel = weight.shape[2:]
    kernels = weight.reshape(groups, c // groups, each, *kernel).transpose(1, 2)
    kernels = kernels.reshape(groups * each, c // groups, *kernel).flip([*range(2, weight.ndim)])
    more = [*output_padding] or [0] * len(kernel)
    around: list[int] = []
    for d, k, p, extra in zip(dilation, kernel, padding, more, strict=True):
        edge = d * (k - 1) - p
        around = [edge, edge + extra, *around]
    wide = F.pad(_dilate(x, stride), around)  # negative: what lies beyond is cut off
    run = (F.conv1d, F.conv2d, F.conv3d)[len(kernel) - 1]
    return run(wide, _dilate(kernels, dilation), bias, 1, 0, 1, groups)


def _matmul_shape(a: Tensor, b: Tensor, *others: Any) -> Tensor:
    _, _, largest, shift, _, _, _, fmt = others
    dtype = accumulator(largest)
    return ended_like(torch.matmul(a.to(dtype), b.to(dtype)), shift, fmt)


@integer_op(shape=_matmul_shape)
def matmul(
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
    """Codes a [..., m, k] and b [..., k, n] -> codes or sums [..., m, n]."""
    dtype = accumulator(largest)
    acc = torch.matmul(centered(a, a_zero, dtype), centered(b, b_zero, dtype))
    return ended(acc, shift, zero, low, high, fmt)
