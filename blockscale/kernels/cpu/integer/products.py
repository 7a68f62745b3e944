# SPDX-License-Identifier: BSD-3-Clause
"""Products of codes: linear layers and convolutions in integer instructions (`shifted`); what they
do not take, by floats that hold the sums."""

from math import prod
from typing import Any

import torch
from torch import Tensor

from blockscale.core.arithmetic.precision import float32_inside
from blockscale.core.format import Format
from blockscale.core.pack import from_stored, grouped_layout
from blockscale.kernels.cpu.conv import CONV
from blockscale.kernels.cpu.integer import shifted
from blockscale.kernels.cpu.integer.ending import ended, holds, supports_sums, unshifted
from blockscale.kernels.registry import kernel


def _sixteen_bits(x: Tensor, weight: Tensor) -> bool:
    small = x.dtype in (torch.int8, torch.uint8, torch.int16) and weight.dtype in (
        torch.int8,
        torch.int16,
    )
    return small and x.numel() > 0 and weight.numel() > 0


def _supports_linear(formats: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    del formats
    x, weight, _bias, x_zero, *_, fmt = arguments
    return x.shape[-1] == weight.shape[1] and shifted.takes(x, weight, x_zero, fmt)


@kernel("integer_linear", backend="cpu", supports=_supports_linear)
def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, x_zero: int, largest: int, shift: Tensor,
    zero: int, low: int, high: int, fmt: str,
) -> Tensor:  # fmt: skip
    """As ops.integer.products.linear."""
    return shifted.linear(x, weight, bias, x_zero, largest, (shift, zero, low, high, fmt))


def _supports_conv(formats: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    del formats
    x, weight, _, shape, *_, groups, transposed, _, x_zero, largest, shift, _, _, _, fmt = arguments
    if not transposed and groups == 1 and _by_shifts(x, weight, shape, x_zero, fmt):
        return True
    return _sixteen_bits(x, weight) and supports_sums(largest, shift, fmt)


def _by_shifts(x: Tensor, weight: Tensor, shape: list[int], x_zero: int, fmt: str) -> bool:
    """Whether patches of x are rows of a product in integer instructions."""
    fits = x.ndim == len(shape) and x.shape[-1] == shape[1] and weight.shape[1] == prod(shape[1:])
    return fits and shifted.takes(x, weight, x_zero, fmt)


@kernel("integer_conv", backend="cpu", supports=_supports_conv)
def conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, shape: list[int], stride: list[int],
    padding: list[int], dilation: list[int], groups: int, transposed: bool,
    output_padding: list[int], x_zero: int, largest: int, shift: Tensor, zero: int, low: int,
    high: int, fmt: str,
) -> Tensor:  # fmt: skip
    """As ops.integer.products.conv."""
    end = (shift, zero, low, high, fmt)
    if not transposed and groups == 1 and _by_shifts(x, weight, shape, x_zero, fmt):
        settings = (stride, padding, dilation)
        made = shifted.conv(x, weight, bias, shape, settings, x_zero, largest, end)
        if made is not None:
            return made
    float_ = holds(unshifted(largest, shift, fmt))
    values = (x.to(float_) - x_zero).movedim(-1, 1)
    offset = None if bias is None else bias.to(float_)
    stored = weight.to(float_)
    with float32_inside(x):
        if transposed:
            dense = from_stored(stored, grouped_layout(groups), shape)
            more = [*output_padding] or [0] * len(stride)
            run = _TRANSPOSED[len(shape) - 2]
            y = run(values, dense, offset, stride, padding, more, groups, dilation)
        else:
            dense = from_stored(stored, "channels_last", shape)
            y = CONV[len(shape) - 2](values, dense, offset, stride, padding, dilation, groups)
    return ended(y.movedim(1, -1).contiguous(), shift, zero, low, high, fmt, largest)


_TRANSPOSED = {
    1: torch.nn.functional.conv_transpose1d,
    2: torch.nn.functional.conv_transpose2d,
    3: torch.nn.functional.conv_transpose3d,
}


def _supports_matmul(formats: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    del formats
    a, b, _a_zero, _b_zero, largest, shift, *_, fmt = arguments
    return a.numel() > 0 and b.numel() > 0 and supports_sums(largest, shift, fmt)


@kernel("integer_matmul", backend="cpu", supports=_supports_matmul)
def matmul(
    a: Tensor, b: Tensor, a_zero: int, b_zero: int, largest: int, shift: Tensor, zero: int,
    low: int, high: int, fmt: str,
) -> Tensor:  # fmt: skip
    """As ops.integer.products.matmul."""
    float_ = holds(unshifted(largest, shift, fmt))
    with float32_inside(a):
        acc = torch.matmul(a.to(float_) - a_zero, b.to(float_) - b_zero)
    return ended(acc, shift, zero, low, high, fmt, largest)
