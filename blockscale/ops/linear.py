"""x @ weight.T with a quantized weight and, if wanted, a quantized x."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core import reference
from blockscale.core.parse import parse
from blockscale.core.precision import float32_inside
from blockscale.core.reference import QParams
from blockscale.ops.op import differentiable, op
from blockscale.ops.primitives import dequantize, straight_through


def quantized_input(
    x: Tensor,
    scale: Tensor | None,
    zero_point: Tensor | None,
    outer: Tensor | None,
    fmt: str,
    seed: Tensor | None,
) -> Tensor:
    """x [...] -> float32 values that the input format leaves of it; an empty `fmt` leaves all."""
    if not fmt:
        return reference.widen(x)
    form = parse(fmt)
    chosen = QParams(scale, outer, zero_point) if scale is not None else None
    qparams = chosen or reference.choose_qparams(x, form)
    codes = reference.quantize(x, qparams, form, seed)
    return reference.dequantize(codes, qparams, form, torch.float32)


def _shape(x: Tensor, weight: Tensor, *_: object) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


@op(ulps=64, shape=_shape)
def linear(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    outer: Tensor | None,
    bias: Tensor | None,
    fmt: str,
    input_scale: Tensor | None,
    input_zero_point: Tensor | None,
    input_outer: Tensor | None,
    input_fmt: str,
    input_seed: Tensor | None = None,
) -> Tensor:
    """x [..., k], packed weight codes [n, packed_size(k)] -> [..., n] in x's dtype.

    With `input_fmt`, x is quantized: by the given scale, else by one chosen from x.
    """
    given = (input_scale, input_zero_point, input_outer)
    values = quantized_input(x, *given, input_fmt, input_seed)
    args = (weight, scale, zero_point, outer, fmt, x.shape[-1], torch.float32)
    dense = dequantize.reference(*args)
    offset = None if bias is None else bias.to(torch.float32)
    with float32_inside(x):
        return F.linear(values, dense, offset).to(x.dtype)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    del output
    x, weight, scale, zero_point, outer, bias, ctx.fmt, *given, ctx.input_fmt, _ = inputs
    ctx.save_for_backward(x, weight, scale, zero_point, outer, bias, *given)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, scale, zero_point, outer, bias, *given = ctx.saved_tensors
    dense = dequantize(weight, scale, zero_point, outer, ctx.fmt, x.shape[-1], torch.float32)
    with float32_inside(x):
        to_x = (gradient.to(torch.float32) @ dense).to(x.dtype)
    if ctx.input_fmt:
        to_x = straight_through(to_x, x, *given, ctx.input_fmt)
    to_bias = None
    if bias is not None and ctx.needs_input_grad[5]:
        to_bias = gradient.to(torch.float32).reshape(-1, gradient.shape[-1]).sum(0).to(bias.dtype)
    return to_x, None, None, None, None, to_bias, *[None] * 6


differentiable(linear, _save, _backward)
