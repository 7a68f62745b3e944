"""Convolutions with a quantized weight and, if wanted, a quantized input."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.layout import from_stored
from blockscale.core.precision import float32_inside
from blockscale.ops.linear import quantized_input
from blockscale.ops.op import differentiable, op
from blockscale.ops.primitives import dequantize, straight_through

_CONV = {1: F.conv1d, 2: F.conv2d}


def _dense(
    weight: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    outer: Tensor | None,
    fmt: str,
    shape: list[int],
) -> Tensor:
    """The float32 weight [outputs, inputs / groups, *kernel]."""
    size = 1
    for n in shape[1:]:
        size = size * n
    stored = dequantize(weight, scale, zero_point, outer, fmt, size, torch.float32)
    return from_stored(stored, "channels_last", shape)


def _shape(x: Tensor, *args: Any) -> Tensor:
    bias, _, shape, *settings = args[4:11]
    dense = x.new_empty(shape)
    offset = None if bias is None else x.new_empty(shape[:1])
    return _CONV[len(shape) - 2](x, dense, offset, *settings).contiguous()


@op(ulps=64, shape=_shape)
def conv(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    outer: Tensor | None,
    bias: Tensor | None,
    fmt: str,
    shape: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    input_scale: Tensor | None,
    input_zero_point: Tensor | None,
    input_outer: Tensor | None,
    input_fmt: str,
    input_seed: Tensor | None = None,
) -> Tensor:
    """x [batch, channels, *size], packed weight codes (channels_last) -> [batch, n, *size].

    shape: the float weight's, [n, channels / groups, *kernel]. An input format's blocks run over
    the channels: x is quantized with its channels last.
    """
    given = (input_scale, input_zero_point, input_outer)
    values = quantized_input(x.movedim(1, -1), *given, input_fmt, input_seed)
    dense = _dense(weight, scale, zero_point, outer, fmt, shape)
    offset = None if bias is None else bias.to(torch.float32)
    run = _CONV[len(shape) - 2]
    with float32_inside(x):
        y = run(values.movedim(-1, 1), dense, offset, stride, padding, dilation, groups)
    return y.to(x.dtype).contiguous()


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    del output
    x, weight, scale, zero_point, outer, bias, ctx.fmt, ctx.shape, *rest = inputs
    ctx.stride, ctx.padding, ctx.dilation, ctx.groups, *given, ctx.input_fmt, _ = rest
    ctx.save_for_backward(x, weight, scale, zero_point, outer, bias, *given)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, scale, zero_point, outer, bias, *given = ctx.saved_tensors
    dense = _dense(weight, scale, zero_point, outer, ctx.fmt, ctx.shape)
    gradient = gradient.to(torch.float32)
    settings = (ctx.stride, ctx.padding, ctx.dilation, False, [0] * len(ctx.stride), ctx.groups)
    wanted = [True, False, False]
    to_x = torch.ops.aten.convolution_backward(
        gradient, x.to(torch.float32), dense, None, *settings, wanted
    )[0].to(x.dtype)
    if ctx.input_fmt:
        to_x = straight_through(to_x.movedim(1, -1), x.movedim(1, -1), *given, ctx.input_fmt)
        to_x = to_x.movedim(-1, 1)
    to_bias = None
    if bias is not None and ctx.needs_input_grad[5]:
        to_bias = gradient.movedim(1, -1).flatten(0, -2).sum(0).to(bias.dtype)
    return to_x, None, None, None, None, to_bias, *[None] * 11


differentiable(conv, _save, _backward)
