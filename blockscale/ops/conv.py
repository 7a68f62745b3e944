# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions with a quantized weight and, if wanted, a quantized input."""

from collections.abc import Callable
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.arithmetic.precision import float32_inside
from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer
from blockscale.core.pack import from_stored
from blockscale.ops.gradient import differentiable
from blockscale.ops.linear import quantized_input
from blockscale.ops.op import op
from blockscale.ops.primitives import dequantize, straight_through

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def quantized_channels(x: Tensor, by: Quantizer) -> Tensor:
    """x [batch, channels, *size] -> float32 values that the input format leaves of it.

    Its channels lie last in memory where there is a format, as they do in codes: torch's float sums
    depend on it in their last bits, and graphs have codes in between.
    """
    if not by.fmt:
        return quantized_input(x, by)
    return quantized_input(x.movedim(1, -1), by).contiguous().movedim(-1, 1)


def _dense(weight: Operand, shape: list[int]) -> Tensor:
    """The float32 weight [outputs, inputs / groups, *kernel]."""
    return from_stored(dequantize(weight, torch.float32), "channels_last", shape)


def _shape(
    x: Tensor,
    weight: Operand,
    bias: Tensor | None,
    shape: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    input: Quantizer,
) -> Tensor:
    del weight, input
    dense = x.new_empty(shape)
    offset = None if bias is None else x.new_empty(shape[:1])
    run = _CONV[len(shape) - 2]
    return run(x, dense, offset, stride, padding, dilation, groups).contiguous()


@op(ulps=64, shape=_shape, size_of=lambda shape: prod(shape[1:]), rows="images")
def conv(
    x: Tensor,
    weight: Operand,
    bias: Tensor | None,
    shape: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    input: Quantizer = UNQUANTIZED,
) -> Tensor:
    """x [batch, channels, *size], a weight (channels_last) -> [batch, n, *size].

    shape: the float weight's, [n, channels / groups, *kernel]. An input format's blocks run over
    the channels: x is quantized with its channels last.
    """
    values = quantized_channels(x, input)
    offset = None if bias is None else bias.to(torch.float32)
    run = _CONV[len(shape) - 2]
    with float32_inside(x):
        y = run(values, _dense(weight, shape), offset, stride, padding, dilation, groups)
    return y.to(x.dtype).contiguous()


def _backward(
    gradient: Tensor,
    needs: set[str],
    x: Tensor,
    weight: Operand,
    bias: Tensor | None,
    shape: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    input: Quantizer,
) -> dict[str, Tensor | None]:
    settings = (stride, padding, dilation, False, [0] * len(stride), groups)
    to_x = gradient_of_input(gradient, x, _dense(weight, shape), settings, input)
    return {"x": to_x, "bias": gradient_of_bias(gradient, bias, needs)}


def gradient_of_input(
    gradient: Tensor, x: Tensor, dense: Tensor, settings: tuple[Any, ...], by: Quantizer
) -> Tensor:
    """The gradient [batch, n, *size] of a convolution's result -> that of its input x, as STE.

    settings: of aten.convolution_backward, from the stride to the groups
    """
    with float32_inside(x):
        to_x: Tensor = torch.ops.aten.convolution_backward(
            gradient.to(torch.float32), x.to(torch.float32), dense, None, *settings,
            [True, False, False],
        )[0].to(x.dtype)  # fmt: skip
    return _through_channels(to_x, x, by)


def gradient_of_bias(gradient: Tensor, bias: Tensor | None, needs: set[str]) -> Tensor | None:
    """The same -> that of the bias [n]; None where nobody asks for it."""
    if bias is None or "bias" not in needs:
        return None
    return gradient.to(torch.float32).movedim(1, -1).flatten(0, -2).sum(0).to(bias.dtype)


def _through_channels(values: Tensor, x: Tensor, by: Quantizer) -> Tensor:
    """Gradients or tangents of x through what quantizes it, its channels last."""
    if not by.fmt:
        return values
    y: Tensor = straight_through(values.movedim(1, -1), x.movedim(1, -1), by)
    return y.movedim(-1, 1)


def forward_rule(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The forward-mode rule of a convolution: it is linear in x and in its bias."""

    def forward(tangents: dict[str, Tensor], x: Tensor, weight: Operand, *rest: Any) -> Tensor:
        _, *settings, by = rest
        to_x = _through_channels(tangents.get("x", torch.zeros_like(x)), x, by)
        return run(to_x, weight, tangents.get("bias"), *settings)

    return forward


differentiable(conv, _backward, forward_rule(conv))
