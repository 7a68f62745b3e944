# SPDX-License-Identifier: BSD-3-Clause
"""Integer arithmetic under power-of-two scales: sums in int32, requantized by a shift of bits.

A code c under the step 2^e means c * 2^e. Sums of products of codes are integers under the sum of
the exponents, so that bringing them to another exponent is a shift with rounding; no multiplication
and no float is needed (Jacob et al. 2018, sec. 2.2 to 2.4, with a multiplier of 1).

Everything here is plain PyTorch on CPU tensors and exact. It shows what integer hardware does; it
is not fast. Sums wrap around beyond int32, as on that hardware: `largest_sum` says how far they go.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.arithmetic.bits import pow2
from blockscale.core.arithmetic.sums import SumInteger
from blockscale.core.elements.integer import Integer
from blockscale.core.format import Format
from blockscale.ops.integer.shifts import shift_right


def requantize_shift(
    acc: Tensor,
    shift: Tensor,
    fmt: Format,
    zero_point: int = 0,
    rounding: str | None = None,
) -> Tensor:
    """Sums [...] int32 -> codes [...] of `fmt`: clamp(round(acc * 2^-shift) + zero_point).

    shift: int32, broadcasts with acc: the output's exponent minus the sums', for each channel or
        for all. Positive, zero or negative, of any size; what leaves the range saturates.
    fmt: says the codes' range and dtype, and the rounding unless `rounding` names another of
        `shift_right`'s. Under it the codes are those that `quantize` gives for acc * step, bit for
        bit (docs/power_of_two.md).

    Raises ValueError for a format whose element is no integer, and for other roundings.
    """
    if not isinstance(fmt.element, Integer):
        raise ValueError(
            f"{fmt}: requantizing by a shift gives integers such as int8, not {fmt.element.name}"
        )
    low, high = fmt.element.limits(fmt.wide)
    steps = shift_right(acc, shift, rounding or fmt.rounding)
    return (steps + zero_point).clamp(int(low), int(high)).to(fmt.element.code_dtype)


def centered(codes: Tensor, zero_point: int) -> Tensor:
    """Codes [...] of any integer dtype -> how many steps each means [...] int32."""
    return codes.to(torch.int32) - zero_point


def linear_int32(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [..., k], weight [n, k], bias [n], all int32 -> x @ weight.T + bias [..., n] int32."""
    y = x @ weight.t()
    return y if bias is None else y + bias


def conv_int32(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """A convolution of x [batch, channels, *size] in int32; other arguments as F.conv2d's.

    weight: [n, channels / groups, *kernel] int32 with one to three kernel dimensions; bias [n].
    """
    run = (F.conv1d, F.conv2d, F.conv3d)[weight.ndim - 3]
    # torch has no dilated convolution of integers: zeros between the weights are the same sum
    return run(x, _spread(weight, dilation), bias, stride, padding, 1, groups)


def _spread(weight: Tensor, dilation: list[int]) -> Tensor:
    """weight [n, c, *kernel] with dilation - 1 zeros between its taps."""
    kernel = [d * (size - 1) + 1 for size, d in zip(weight.shape[2:], dilation, strict=True)]
    spread = weight.new_zeros((*weight.shape[:2], *kernel))
    taps: list[slice] = [slice(None, None, d) for d in (1, 1, *dilation)]
    spread[tuple(taps)] = weight
    return spread


def largest_sum(weight: Tensor, bias: Tensor | None, largest_input: int) -> int:
    """The largest |sum of products + bias| that inputs up to `largest_input` can give.

    weight: [n, ...] integers, bias [n]. Below 2^31 no sum, in any order, leaves int32; up to 2^24
    none rounds in float32.
    """
    sums = weight.to(torch.int64).abs().flatten(1).sum(1) * largest_input
    if bias is not None:
        sums = sums + bias.to(torch.int64).abs()
    return int(sums.max()) if sums.numel() else 0


def integer_bias(bias: Tensor, exponent: Tensor) -> Tensor:
    """bias [n] float -> round_half_even(bias * 2^-exponent) [n] int32, in units of the sums: the
    codes of a recipe's `int32:sums` (docs/numerics.md, 7.1).

    exponent: int32, [n] or one for all.

    Raises ValueError where the bias is not finite or leaves int32.
    """
    kind, steps = SumInteger(32), pow2(exponent.clamp(-149, 127))
    if not bool(kind.in_range(bias.detach(), steps).all()):
        worst = float((bias.detach() / steps).abs().nan_to_num(torch.inf).max())
        raise ValueError(
            f"the bias is {worst:.4g} steps of the sums, more than int32 holds: "
            f"use a larger input or weight scale"
        )
    return kind.encode(bias.detach(), steps)


def sum_pool2d(x: Tensor, kernel: list[int], stride: list[int], padding: list[int]) -> Tensor:
    """Sums over windows of x [..., h, w] int32, padded with zeros -> [..., h', w'] int32.

    The average is this sum under an exponent smaller by log2 of the window's size.
    """
    y = F.avg_pool2d(x.to(torch.int64), kernel, stride, padding, divisor_override=1)
    return y.to(torch.int32)


def add_aligned(x: Tensor, y: Tensor, x_shift: Tensor, y_shift: Tensor) -> Tensor:
    """(x << x_shift) + (y << y_shift) [...] int32: a sum of two exponents, under the smaller one.

    x_shift, y_shift: int32, not negative, broadcast with x and y.
    """
    return (x << x_shift) + (y << y_shift)
