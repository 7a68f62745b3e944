# SPDX-License-Identifier: BSD-3-Clause
"""Weights, products in float64 as numerics.md means them, and how far a result is from one."""

import torch
from torch import Tensor

import blockscale as bs
from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer, operand
from blockscale.core.parse import parse
from blockscale.ops import primitives as P
from blockscale.ops.linear import linear, quantized_input
from blockscale.ops.op import OPS

ROUNDS = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def stored(w: Tensor, fmt: str) -> Operand:
    """A weight in a format, its name or its spelling."""
    form = parse(fmt)
    codes, *rest = P.choose_quantize.reference(w, str(form), None)
    return operand(codes, P.from_list(rest, form), str(form), w.shape[-1])


def by(fmt: str) -> Quantizer:
    """How x is quantized, by a scale of its own."""
    return Quantizer(None, None, None, str(parse(fmt)) if fmt else "")


def on_webgpu(x: Tensor, w: Operand, bias: Tensor | None = None, input: Quantizer = UNQUANTIZED):
    """The product on the GPU."""
    with bs.use("webgpu"):
        return linear(x, w, bias, input)


def excess(
    y: Tensor, x: Tensor, w: Operand, bias: Tensor | None = None, input: Quantizer = UNQUANTIZED
) -> float:
    """How many times the tolerance y is off: at most 1 is right. NaN must be where it belongs."""
    values = quantized_input(x, input).double()
    dense = P.dequantize.reference(w, torch.float32).double()
    offset = torch.zeros(dense.shape[0]).double() if bias is None else bias.double()
    exact = values @ dense.T + offset
    assert (y.dtype, y.shape) == (x.dtype, exact.shape)
    assert torch.equal(y.isnan(), exact.isnan())
    size = values.abs() @ dense.abs().T + offset.abs()
    bound = OPS["linear"].ulps * 2.0**-24 * size
    bound += ROUNDS[x.dtype] * (exact.abs() + bound)
    bound += torch.finfo(x.dtype).smallest_normal * ROUNDS[x.dtype]
    misses = ((y.double() - exact).abs() / bound).nan_to_num(0.0, posinf=0.0)
    return misses.max().item() if misses.numel() else 0.0


def check(x: Tensor, w: Operand, bias: Tensor | None = None, input: Quantizer = UNQUANTIZED):
    """Compute it on the GPU, and fail where that is off."""
    y = on_webgpu(x, w, bias, input)
    assert excess(y, x, w, bias, input) <= 1, (w.fmt, input.fmt, tuple(x.shape), x.dtype)
