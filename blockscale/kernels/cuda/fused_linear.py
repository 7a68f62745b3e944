# SPDX-License-Identifier: BSD-3-Clause
"""x @ weight.T with what follows it, through the kernels of `linear`: weights are never decoded to
memory, and x's codes meet them as integers where those kernels do that."""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.operand import UNQUANTIZED, Quantizer, Value
from blockscale.core.parse import parse
from blockscale.core.reference import FLOATS
from blockscale.kernels.cuda.dequantize import dequantize
from blockscale.kernels.cuda.linear import linear
from blockscale.kernels.cuda.quantize import choose_quantize, quantize
from blockscale.kernels.cuda.spec import known
from blockscale.kernels.numbers import ACTIVATIONS
from blockscale.kernels.registry import kernel


@cache
def _known(spellings: tuple[str, ...]) -> bool:
    return known(tuple(parse(spelling) for spelling in spellings if spelling), ())


def _supports(formats: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    del formats
    x, weight, _, activation, dtype, y = arguments
    if not weight.fmt or weight.data.ndim != 2 or activation not in ACTIVATIONS:
        return False
    if dtype not in FLOATS or not (x.fmt or x.data.dtype in FLOATS) or x.data.ndim == 0:
        return False
    return _known((x.fmt, weight.fmt, y.fmt))


@kernel("fused_linear", backend="cuda", supports=_supports)
def fused_linear(
    x: Value,
    weight: Value,
    bias: Tensor | None,
    activation: str,
    dtype: torch.dtype,
    y: Quantizer,
) -> list[Tensor]:
    """As ops.fused.products.linear."""
    values, by = _floats(x, dtype)
    if bias is not None:
        bias = bias.to(values.dtype) if values.dtype == dtype else bias.to(torch.float32)
    done = linear(values, weight.operand, bias, by).to(dtype)
    activate = ACTIVATIONS[activation]
    done = activate(done)
    if not y.fmt:
        return [done]
    return choose_quantize(done, y.fmt, y.seed) if y.scale is None else [quantize(done, y)]


def _floats(x: Value, dtype: torch.dtype) -> tuple[Tensor, Quantizer]:
    """x as `linear` takes it: floats, and how they become the same codes again."""
    if not x.fmt:
        return (x.data if x.data.dtype == dtype else x.data.to(torch.float32)), UNQUANTIZED
    values = dequantize(x.operand, torch.float32)
    if not _comes_back(x.fmt):
        return values, UNQUANTIZED
    scale, zero = x.scale, x.zero_point
    assert scale is not None
    if scale.ndim != values.ndim and scale.numel() == 1:  # one for all may have any rank
        whole = (1,) * values.ndim
        scale, zero = scale.reshape(whole), None if zero is None else zero.reshape(whole)
    return values, Quantizer(scale, zero, x.outer, x.fmt, None, x.more)


@cache
def _comes_back(spelling: str) -> bool:
    """Whether values under one scale for all of x get the codes that they were decoded from:
    fl(fl(code · step) / step) is within an ulp of the code, which the nearest integer does not see.
    """
    fmt = parse(spelling)
    plain = fmt.element.integer and fmt.offset is None and fmt.zero is None
    return plain and fmt.rounding == "nearest_even" and fmt.element.bits <= 8 and fmt.block.static
