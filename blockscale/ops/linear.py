# SPDX-License-Identifier: BSD-3-Clause
"""x @ weight.T with a quantized weight and, if wanted, a quantized x."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core import reference
from blockscale.core.arithmetic.precision import float32_inside
from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer
from blockscale.kernels.registry import batch_invariant
from blockscale.ops.batch_rows import rows_in_order
from blockscale.ops.gradient import differentiable
from blockscale.ops.op import op
from blockscale.ops.primitives import dequantize, straight_through


def quantized_input(x: Tensor, by: Quantizer) -> Tensor:
    """x [...] -> float32 values that the input format leaves of it; all if there is no format."""
    if not by.fmt:
        return reference.widen(x)
    form = by.format
    qparams = by.qparams or reference.choose_qparams(x, form)
    codes = reference.quantize(x, qparams, form, by.seed)
    return reference.dequantize(codes, qparams, form, torch.float32)


def _shape(x: Tensor, weight: Operand, *_: object) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.codes.shape[0]))


@op(ulps=64, shape=_shape, size_of=lambda x: x.shape[-1], rows="ordered")
def linear(
    x: Tensor, weight: Operand, bias: Tensor | None = None, input: Quantizer = UNQUANTIZED
) -> Tensor:
    """x [..., k], a weight [n, k] -> [..., n] in x's dtype.

    With a format in `input`, x is quantized: by the given scale, else by one chosen from x.
    """
    values = quantized_input(x, input)
    dense = dequantize.reference(weight, torch.float32)
    offset = None if bias is None else bias.to(torch.float32)
    product = rows_in_order if batch_invariant() else F.linear
    with float32_inside(x):
        return product(values, dense, offset).to(x.dtype)


def _backward(
    gradient: Tensor,
    needs: set[str],
    x: Tensor,
    weight: Operand,
    bias: Tensor | None,
    input: Quantizer,
) -> dict[str, Tensor | None]:
    dense = dequantize(weight, torch.float32)
    with float32_inside(x):
        to_x = (gradient.to(torch.float32) @ dense).to(x.dtype)
    if input.fmt:
        to_x = straight_through(to_x, x, input)
    to_bias = None
    if bias is not None and "bias" in needs:
        to_bias = gradient.to(torch.float32).reshape(-1, gradient.shape[-1]).sum(0).to(bias.dtype)
    return {"x": to_x, "bias": to_bias}


def _forward(tangents: dict[str, Tensor], x: Tensor, weight: Operand, *rest: Any) -> Tensor:
    by: Quantizer = rest[-1]
    to_x, to_bias = tangents.get("x", torch.zeros_like(x)), tangents.get("bias")
    if by.fmt:
        to_x = straight_through(to_x, x, by)
    tangent: Tensor = linear(to_x, weight, to_bias)
    return tangent


differentiable(linear, _backward, _forward)
