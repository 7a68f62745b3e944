"""x @ weight.T with a quantized weight and, if wanted, a quantized x."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core import reference
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.ops.op import differentiable, op
from blockscale.ops.primitives import dequantize, straight_through


def quantized_input(
    x: Tensor, scale: Tensor | None, zero_point: Tensor | None, outer: Tensor | None, fmt: str
) -> Tensor:
    """x [...] -> float32 values that the input format leaves of it; an empty `fmt` leaves all."""
    if not fmt:
        return reference.widen(x)
    form = parse(fmt)
    chosen = QParams(scale, outer, zero_point) if scale is not None else None
    qparams = chosen or reference.choose_qparams(x, form)
    return reference.dequantize(reference.quantize(x, qparams, form), qparams, form, torch.float32)


@op(ulps=64)
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
) -> Tensor:
    """x [..., k], packed weight codes [n, packed_size(k)] -> [..., n] in x's dtype.

    With `input_fmt`, x is quantized: by the given scale, else by one chosen from x.
    """
    values = quantized_input(x, input_scale, input_zero_point, input_outer, input_fmt)
    args = (weight, scale, zero_point, outer, fmt, x.shape[-1], torch.float32)
    dense = dequantize.reference(*args)
    return F.linear(values, dense, None if bias is None else bias.to(torch.float32)).to(x.dtype)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    del output
    x, weight, scale, zero_point, outer, bias, ctx.fmt, *given, ctx.input_fmt = inputs
    ctx.save_for_backward(x, weight, scale, zero_point, outer, bias, *given)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, scale, zero_point, outer, bias, *given = ctx.saved_tensors
    dense = dequantize(weight, scale, zero_point, outer, ctx.fmt, x.shape[-1], torch.float32)
    to_x = (gradient.to(torch.float32) @ dense).to(x.dtype)
    if ctx.input_fmt:
        to_x = straight_through(to_x, x, *given, ctx.input_fmt)
    to_bias = None
    if bias is not None and ctx.needs_input_grad[5]:
        to_bias = gradient.to(torch.float32).flatten(0, -2).sum(0).to(bias.dtype)
    return to_x, None, None, None, None, to_bias, None, None, None, None, None


differentiable(linear, _save, _backward)
