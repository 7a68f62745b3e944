# SPDX-License-Identifier: BSD-3-Clause
"""Scales and zero points chosen, values to codes, back, and both at once for training, with
torchao's bits."""

from collections.abc import Callable, Sequence
from enum import Enum

import torch
from torch import Tensor

from blockscale.compat.torchao import kernels
from blockscale.compat.torchao.dtypes import (
    FLOATS,
    MappingType,
    Rule,
    ZeroPointDomain,
    check_codes,
    check_float,
    check_float_dtype,
    check_holds,
    check_reaches,
    limits,
    read_member,
    read_rule,
    stored_in,
)
from blockscale.compat.torchao.split import Split, split_blocks

# ruff: noqa: A002, PLR0913  (the parameters and their names are torchao's)


# Scales and zero points.


def choose_qparams_affine(
    input: Tensor,
    mapping_type: Enum,
    block_size: Sequence[int],
    target_dtype: torch.dtype,
    quant_min: float | None = None,
    quant_max: float | None = None,
    eps: float | None = None,
    scale_dtype: torch.dtype | None = None,
    zero_point_dtype: torch.dtype | None = torch.int32,
    keepdim: bool = False,
    *,
    zero_point_domain: Enum = ZeroPointDomain.INT,
    preserve_zero: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """input [...] float32, float16 or bfloat16 -> scale and zero point, one for each block.

    The arithmetic is in input's dtype; scale has scale_dtype (None: input's). Without keepdim a
    dimension that a block covers is missing from their shape, with it they have input's rank.
    The last two choose torchao's separate functions: INT or FLOAT (tinygemm) without preserve_zero,
    and NONE, whose zero point is None. No gradient passes. Raises TypeError for other dtypes of
    input, ValueError for blocks that do not divide and for what has no meaning.
    mapping_type, block_size, target_dtype, quant_min, quant_max, eps, zero_point_dtype and
    zero_point_domain are torchao's.
    Source: torchao 0.18.0, quantization/quant_primitives.py.
    """
    check_float(input, "input")
    rule = read_rule(mapping_type, zero_point_domain, preserve_zero)
    codes = limits(target_dtype, quant_min, quant_max)
    split = split_blocks(input.shape, block_size)
    result = kernels.choose(input.detach(), split, rule, codes, eps)
    if result is not None:
        shape = split.counts if keepdim else split.outside
        scale, zero_point = (None if part is None else part.reshape(shape) for part in result)
        assert scale is not None
        return _stored(scale, zero_point, rule, codes, scale_dtype, zero_point_dtype)
    # detach, not torch.no_grad: torch.export would move what that covers into a submodule
    low, high = split.ranges(input.detach(), keepdim)
    return _qparams(low, high, rule, codes, eps, scale_dtype, zero_point_dtype)


def choose_qparams_affine_with_min_max(
    min_val: Tensor,
    max_val: Tensor,
    mapping_type: Enum,
    block_size: Sequence[int],
    target_dtype: torch.dtype,
    quant_min: float | None = None,
    quant_max: float | None = None,
    eps: float | None = None,
    scale_dtype: torch.dtype | None = None,
    zero_point_dtype: torch.dtype | None = None,
    *,
    zero_point_domain: Enum = ZeroPointDomain.INT,
    preserve_zero: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """The range of each block, min_val and max_val [...] -> its scale and zero point [...].

    As choose_qparams_affine, for ranges that an observer has collected; block_size is ignored, as
    in torchao. zero_point_dtype None is int32 when asymmetric and min_val's dtype otherwise. The
    scale passes a gradient. Raises TypeError for dtypes that differ or are not float32, float16 or
    bfloat16, ValueError as choose_qparams_affine.
    mapping_type, target_dtype, quant_min, quant_max, eps, scale_dtype, zero_point_domain and
    preserve_zero are torchao's.
    Source: torchao 0.18.0, quantization/quant_primitives.py.
    """
    del block_size
    check_float(min_val, "min_val")
    check_float(max_val, "max_val")
    if min_val.dtype != max_val.dtype:
        raise TypeError(
            f"min_val is {min_val.dtype}, max_val {max_val.dtype}: give both the same dtype"
        )
    if min_val.shape != max_val.shape:
        shapes = f"{tuple(min_val.shape)} and {tuple(max_val.shape)}"
        raise ValueError(
            f"min_val and max_val have shapes {shapes}: give one of each for every block"
        )
    rule = read_rule(mapping_type, zero_point_domain, preserve_zero)
    codes = limits(target_dtype, quant_min, quant_max)
    return _qparams(min_val, max_val, rule, codes, eps, scale_dtype, zero_point_dtype)


def _qparams(
    low: Tensor,
    high: Tensor,
    rule: Rule,
    codes: tuple[float, float],
    eps: float | None,
    scale_dtype: torch.dtype | None,
    zero_point_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor | None]:
    """The range of each block [...] and the smallest and largest code -> scale and zero point."""
    scale_dtype = low.dtype if scale_dtype is None else scale_dtype
    check_float_dtype(scale_dtype, "scale_dtype")
    if eps is None:
        eps = torch.finfo(low.dtype).smallest_normal
    if rule.preserve_zero:
        low, high = low.clamp(max=0), high.clamp(min=0)
    # The floor comes before scale_dtype: the float16 scale of a tiny float32 block may still be 0.
    scale = _raw_scale(low, high, rule.mapping, codes).clamp(min=eps)
    if rule.domain is ZeroPointDomain.FLOAT:
        middle = low + scale * ((codes[1] + codes[0] + 1) / 2)
        return scale.to(scale_dtype), middle.to(_float_or(zero_point_dtype, low.dtype))
    zero_point = None
    if rule.mapping is MappingType.ASYMMETRIC:
        check_reaches(low.dtype, *codes)
        zero_point = (codes[0] - (low / scale).round()).clamp(*codes)
    return _stored(scale, zero_point, rule, codes, scale_dtype, zero_point_dtype)


def _stored(
    scale: Tensor,
    zero_point: Tensor | None,
    rule: Rule,
    codes: tuple[float, float],
    scale_dtype: torch.dtype | None,
    zero_point_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor | None]:
    """A scale and the code of zero, which a symmetric one has in the middle, in their dtypes."""
    scale_dtype = scale.dtype if scale_dtype is None else scale_dtype
    check_float_dtype(scale_dtype, "scale_dtype")
    stored = scale.to(scale_dtype)
    if rule.domain is ZeroPointDomain.NONE:
        return stored, None
    return stored, _integer_zero_point(zero_point, scale, codes, zero_point_dtype)


def _raw_scale(
    low: Tensor, high: Tensor, mapping: MappingType, codes: tuple[float, float]
) -> Tensor:
    """Divides by a Python number, not a tensor, because torchao does: on CUDA the bits differ."""
    quant_min, quant_max = codes
    if mapping is MappingType.SYMMETRIC:
        return torch.maximum(-low, high) / (float(quant_max - quant_min) / 2)
    if mapping is MappingType.ASYMMETRIC:
        return (high - low) / float(quant_max - quant_min)
    for_low, for_high = low / float(quant_min), high / float(quant_max)
    # not torch.maximum: quant_min 0 makes for_low NaN or -inf, and for_high must win then
    return torch.where(for_low > for_high, for_low, for_high)


def _integer_zero_point(
    zero_point: Tensor | None,
    scale: Tensor,
    codes: tuple[float, float],
    dtype: torch.dtype | None,
) -> Tensor:
    """The code of zero in its dtype: dtype None is int32, or scale's for the middle code."""
    quant_min, quant_max = codes
    if zero_point is not None:
        dtype = torch.int32 if dtype is None else dtype
        check_holds(dtype, quant_min, quant_max)
        return zero_point.to(dtype)
    middle = int((quant_max + quant_min + 1) / 2)
    dtype = scale.dtype if dtype is None else dtype
    check_reaches(scale.dtype, middle, middle)
    check_holds(dtype, middle, middle)
    return torch.full_like(scale, middle).to(dtype)


def _float_or(dtype: torch.dtype | None, default: torch.dtype) -> torch.dtype:
    """The dtype of a zero point in the FLOAT domain; int32 is only choose_qparams' default."""
    if dtype is None or dtype == torch.int32:
        return default
    check_float_dtype(dtype, "zero_point_dtype in the FLOAT domain")
    return dtype


# Values to codes and back.


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
    block_size: elements of a block along each dimension; zero_point_domain: INT, FLOAT or NONE.
    Source: torchao 0.18.0, quantization/quant_primitives.py.
    """
    check_float(input, "input")
    low, high = limits(output_dtype, quant_min, quant_max)
    split = split_blocks(input.shape, block_size)
    domain = read_member(ZeroPointDomain, zero_point_domain)
    scale, zero_point = _broadcast(split, scale.detach(), zero_point, domain)
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
    block_size: elements of a block along each dimension; zero_point_domain: INT, FLOAT or NONE.
    Source: torchao 0.18.0, quantization/quant_primitives.py.
    """
    check_codes(input, input_dtype)
    check_float_dtype(output_dtype, "output_dtype")
    low, high = limits(input_dtype, quant_min, quant_max)
    split = split_blocks(input.shape, block_size)
    domain = read_member(ZeroPointDomain, zero_point_domain)
    scale, zero_point = _broadcast(split, scale, zero_point, domain)
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
    block_size, zero_point, quant_min, quant_max and zero_point_domain as of quantize_affine.
    Source: torchao 0.18.0, quantization/quant_primitives.py, `_fake_quantize_affine`.
    """
    check_float(input, "input")
    codes = limits(quant_dtype, quant_min, quant_max)
    split = split_blocks(input.shape, block_size)
    domain = read_member(ZeroPointDomain, zero_point_domain)
    # each step spreads them anew, so that the parts of a gradient are added in torchao's order
    qparams = _broadcast(split, scale, zero_point, domain)
    q = _quantized(input, split, *qparams, codes, domain, _straight_round)
    qparams = _broadcast(split, scale, zero_point, domain)
    return _dequantized(q, split, *qparams, codes, domain, input.dtype)


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


def _broadcast(
    split: Split, scale: Tensor, zero_point: Tensor | None, domain: ZeroPointDomain
) -> tuple[Tensor, Tensor | None]:
    """scale and zero_point, checked and shaped to broadcast with the blocks."""
    check_float(scale, "scale")
    scale = split.expand(scale, "scale")
    # torchao takes a zero point without elements for none (its custom ops cannot pass None)
    if zero_point is None or (zero_point.numel() == 0 and scale.numel() != 0):
        return scale, None
    if domain is ZeroPointDomain.NONE:
        raise ValueError("ZeroPointDomain.NONE has no zero point: pass zero_point=None")
    if zero_point.dtype.is_floating_point:
        check_float(zero_point, "zero_point")
    return scale, split.expand(zero_point, "zero_point")
