# SPDX-License-Identifier: BSD-3-Clause
"""Values to codes, back, and both at once for training, with torchao's bits."""

# ruff: noqa: A002, PLR0913  (the parameters and their names are torchao's)

from collections.abc import Callable, Sequence
from enum import Enum

import torch
from torch import Tensor

from blockscale.compat.torchao import kernels
from blockscale.compat.torchao.dtypes import (
    FLOATS,
    ZeroPointDomain,
    check_codes,
    check_float,
    check_float_dtype,
    check_reaches,
    limits,
    read_member,
    stored_in,
)
from blockscale.compat.torchao.split import Split, split_blocks


def quantize_affine(
    input: Tensor,
    block_size: Sequence[int],
    scale: Tensor,
    zero_point: Tensor | None,
    output_dtype: torch.dtype,
    quant_min: float | None = None,
    quant_max: float | None = None,
    *,
    zero_point_domain: Enum = ZeroPointDomain.INT,
) -> Tensor:
    """input [...] -> codes [...] of output_dtype; of 1 to 7 bits in uint8 or int8.

    INT, NONE: clamp(round_half_even(input * (1 / scale)) + zero_point, quant_min, quant_max)
    FLOAT:     clamp(round_half_even((input - least) / scale), quant_min, quant_max), where
               least = zero_point - scale * (quant_max + quant_min + 1) / 2

    The arithmetic is in the dtype to which those of input and scale promote. zero_point None is 0.

    No gradient passes. Raises TypeError unless input and scale are float32, float16 or bfloat16,
    ValueError for blocks that do not divide, for a scale or zero_point of another shape than the
    blocks, and for a zero point in the NONE domain.
    Source: torchao 0.18.0, quantization/quant_primitives.py.
    """
    check_float(input, "input")
    low, high = limits(output_dtype, quant_min, quant_max)
    split = split_blocks(input.shape, block_size)
    domain = read_member(ZeroPointDomain, zero_point_domain)
    scale, zero_point = _spread(split, scale.detach(), zero_point, domain)
    codes = None
    if domain is not ZeroPointDomain.FLOAT:
        codes = kernels.quantized(input.detach(), split, scale, zero_point, (low, high))
    if codes is None:
        codes = _quantized(input.detach(), split, scale, zero_point, (low, high), domain)
    return codes.to(stored_in(output_dtype))


def dequantize_affine(
    input: Tensor,
    block_size: Sequence[int],
    scale: Tensor,
    zero_point: Tensor | None,
    input_dtype: torch.dtype,
    quant_min: float | None = None,
    quant_max: float | None = None,
    *,
    output_dtype: torch.dtype = torch.float32,
    zero_point_domain: Enum = ZeroPointDomain.INT,
) -> Tensor:
    """codes [...] of input_dtype -> values [...] of output_dtype.

    INT, NONE: (input - zero_point) * scale, the difference in output_dtype
    FLOAT:     (input - (quant_max + quant_min + 1) / 2) * scale + zero_point, each in output_dtype

    Raises TypeError if the codes are not of input_dtype, otherwise as quantize_affine.
    Source: torchao 0.18.0, quantization/quant_primitives.py.
    """
    check_codes(input, input_dtype)
    check_float_dtype(output_dtype, "output_dtype")
    low, high = limits(input_dtype, quant_min, quant_max)
    split = split_blocks(input.shape, block_size)
    domain = read_member(ZeroPointDomain, zero_point_domain)
    scale, zero_point = _spread(split, scale, zero_point, domain)
    values = None
    if domain is not ZeroPointDomain.FLOAT:
        values = kernels.dequantized(input, split, scale, zero_point, output_dtype)
    if values is None:
        values = _dequantized(input, split, scale, zero_point, (low, high), domain, output_dtype)
    return values


def fake_quantize_affine(
    input: Tensor,
    block_size: Sequence[int],
    scale: Tensor,
    zero_point: Tensor | None,
    quant_dtype: torch.dtype,
    quant_min: float | None = None,
    quant_max: float | None = None,
    zero_point_domain: Enum = ZeroPointDomain.INT,
) -> Tensor:
    """input [...] -> what quantize_affine and dequantize_affine leave of it, in input's dtype.

    The arithmetic is theirs, but codes stay in the dtype that they are computed in: NaN stays NaN,
    and in the NONE domain -0 stays -0. quant_dtype says which codes there are.

    Rounding passes the gradient as it is, the clamp passes it where the code is in range. input,
    scale and a zero point of floats get theirs, as in torchao. Raises as quantize_affine.
    Source: torchao 0.18.0, quantization/quant_primitives.py, `_fake_quantize_affine`.
    """
    check_float(input, "input")
    codes = limits(quant_dtype, quant_min, quant_max)
    split = split_blocks(input.shape, block_size)
    domain = read_member(ZeroPointDomain, zero_point_domain)
    # each step spreads them anew, so that the parts of a gradient are added in torchao's order
    spread = _spread(split, scale, zero_point, domain)
    q = _quantized(input, split, *spread, codes, domain, _straight_round)
    spread = _spread(split, scale, zero_point, domain)
    return _dequantized(q, split, *spread, codes, domain, input.dtype)


def _straight_round(x: Tensor) -> Tensor:
    """Half to even; the gradient passes as it is, but for what is not finite, which a clamp stops.

    Of plain ops: compiling an autograd.Function warns of a deprecation that is torch's own.
    """
    if not (x.requires_grad and torch.is_grad_enabled()):
        return x.round()
    exact = x.detach()
    nothing = torch.where(exact.isfinite(), -(exact - x), -0.0)  # -0, which changes no number
    return exact.round() + nothing


def _quantized(
    x: Tensor,
    split: Split,
    scale: Tensor,
    zero_point: Tensor | None,
    limits: tuple[float, float],
    domain: ZeroPointDomain,
    rounded: Callable[[Tensor], Tensor] = torch.round,
) -> Tensor:
    """The codes of x [...] in the dtype that they are computed in."""
    low, high = limits
    blocks = x.reshape(split.view)
    if domain is ZeroPointDomain.FLOAT:
        to_least = scale * ((high + low + 1) / 2)
        least = -to_least if zero_point is None else zero_point - to_least
        codes = rounded((blocks - least) / scale)
    else:
        codes = rounded(blocks * (1.0 / scale))
        if zero_point is not None:
            codes = codes + zero_point
    check_reaches(codes.dtype, low, high)
    return codes.clamp(low, high).reshape(x.shape)


def _dequantized(
    codes: Tensor,
    split: Split,
    scale: Tensor,
    zero_point: Tensor | None,
    limits: tuple[float, float],
    domain: ZeroPointDomain,
    dtype: torch.dtype,
) -> Tensor:
    """The values of codes [...] in `dtype`."""
    low, high = limits
    blocks = codes.reshape(split.view)
    if domain is ZeroPointDomain.FLOAT:
        blocks = blocks if blocks.dtype in FLOATS else blocks.to(torch.float32)
        values = (blocks - (high + low + 1) / 2).to(dtype)
        values *= scale  # in place as torchao's, so that a gradient to scale is in this dtype, too
        if zero_point is not None:
            values += zero_point
    else:
        values = blocks.to(dtype)
        if zero_point is not None:
            values = values - zero_point.to(dtype)
        values = (values * scale).to(dtype)
    return values.reshape(codes.shape)


def _spread(
    split: Split, scale: Tensor, zero_point: Tensor | None, domain: ZeroPointDomain
) -> tuple[Tensor, Tensor | None]:
    """scale and zero_point, checked and shaped to broadcast with the blocks."""
    check_float(scale, "scale")
    scale = split.spread(scale, "scale")
    # torchao takes a zero point without elements for none (its custom ops cannot pass None)
    if zero_point is None or (zero_point.numel() == 0 and scale.numel() != 0):
        return scale, None
    if domain is ZeroPointDomain.NONE:
        raise ValueError("ZeroPointDomain.NONE has no zero point: pass zero_point=None")
    if zero_point.dtype.is_floating_point:
        check_float(zero_point, "zero_point")
    return scale, split.spread(zero_point, "zero_point")
