"""quantize_affine and dequantize_affine: values to codes and back, with torchao's bits."""

# ruff: noqa: A002, PLR0913  (the parameters and their names are torchao's)

from collections.abc import Sequence
from enum import Enum

import torch
from torch import Tensor

from blockscale.compat.torchao import kernels
from blockscale.compat.torchao.dtypes import (
    check_codes,
    check_float,
    check_float_dtype,
    check_reaches,
    limits,
    stored_in,
)
from blockscale.compat.torchao.enums import ZeroPointDomain, read_member
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
    stored = stored_in(output_dtype)
    if domain is not ZeroPointDomain.FLOAT:
        found = kernels.quantized(input.detach(), split, scale, zero_point, (low, high))
        if found is not None:
            return found.to(stored)
    x = input.detach().reshape(split.view)
    if domain is ZeroPointDomain.FLOAT:
        to_least = scale * ((high + low + 1) / 2)
        least = -to_least if zero_point is None else zero_point - to_least
        codes = ((x - least) / scale).round()
    else:
        codes = (x * (1.0 / scale)).round()
        if zero_point is not None:
            codes = codes + zero_point
    check_reaches(codes.dtype, low, high)
    return codes.clamp(low, high).reshape(input.shape).to(stored)


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
    if domain is not ZeroPointDomain.FLOAT:
        found = kernels.dequantized(input, split, scale, zero_point, output_dtype)
        if found is not None:
            return found
    codes = input.reshape(split.view)
    if domain is ZeroPointDomain.FLOAT:
        values = (codes.to(torch.float32) - (high + low + 1) / 2).to(output_dtype)
        values = (values * scale).to(output_dtype)
        if zero_point is not None:
            values = (values + zero_point).to(output_dtype)
    else:
        values = codes.to(output_dtype)
        if zero_point is not None:
            values = values - zero_point.to(output_dtype)
        values = (values * scale).to(output_dtype)
    return values.reshape(input.shape)


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
