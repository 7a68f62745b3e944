# SPDX-License-Identifier: BSD-3-Clause
"""Transposed convolutions with a quantized weight and, if wanted, a quantized input."""

from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.arithmetic.precision import float32_inside
from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer
from blockscale.core.pack import from_stored, grouped_layout
from blockscale.ops.conv import (
    forward_rule,
    gradient_of_bias,
    gradient_of_input,
    quantized_channels,
)
from blockscale.ops.gradient import differentiable
from blockscale.ops.op import op
from blockscale.ops.primitives import dequantize

_RUN = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
Sizes = list[int]


def row_size(shape: Sizes, groups: int) -> int:
    """How many weights an output has, of a float weight's shape [channels, n / groups, *kernel]."""
    return prod(shape[2:]) * (shape[0] // groups)


def _dense(weight: Operand, shape: Sizes, groups: int) -> Tensor:
    """The float32 weight [channels, n / groups, *kernel]."""
    return from_stored(dequantize(weight, torch.float32), grouped_layout(groups), shape)


def _shape(
    x: Tensor,
    weight: Operand,
    bias: Tensor | None,
    shape: Sizes,
    stride: Sizes,
    padding: Sizes,
    output_padding: Sizes,
    dilation: Sizes,
    groups: int,
    input: Quantizer,
) -> Tensor:
    del weight, input
    offset = None if bias is None else x.new_empty([shape[1] * groups])
    run = _RUN[len(shape) - 2]
    settings = stride, padding, output_padding, groups, dilation
    return run(x, x.new_empty(shape), offset, *settings).contiguous()


@op(ulps=64, shape=_shape, size_of=row_size, rows="images")
def conv_transpose(
    x: Tensor,
    weight: Operand,
    bias: Tensor | None,
    shape: list[int],
    stride: list[int],
    padding: list[int],
    output_padding: list[int],
    dilation: list[int],
    groups: int,
    input: Quantizer = UNQUANTIZED,
) -> Tensor:
    """x [batch, channels, *size], a weight (transposed_channels_last) -> [batch, n, *size].

    shape: the float weight's, [channels, n / groups, *kernel]. An input format's blocks run over
    the channels: x is quantized with its channels last, before zeros come between its values.
    """
    values = quantized_channels(x, input)
    offset = None if bias is None else bias.to(torch.float32)
    run, settings = _RUN[len(shape) - 2], (stride, padding, output_padding, groups, dilation)
    with float32_inside(x):
        y = run(values, _dense(weight, shape, groups), offset, *settings)
    return y.to(x.dtype).contiguous()


def _backward(
    gradient: Tensor,
    needs: set[str],
    x: Tensor,
    weight: Operand,
    bias: Tensor | None,
    shape: Sizes,
    stride: Sizes,
    padding: Sizes,
    output_padding: Sizes,
    dilation: Sizes,
    groups: int,
    input: Quantizer,
) -> dict[str, Tensor | None]:
    settings = (stride, padding, dilation, True, output_padding, groups)
    to_x = gradient_of_input(gradient, x, _dense(weight, shape, groups), settings, input)
    return {"x": to_x, "bias": gradient_of_bias(gradient, bias, needs)}


differentiable(conv_transpose, _backward, forward_rule(conv_transpose))
