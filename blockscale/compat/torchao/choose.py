# SPDX-License-Identifier: BSD-3-Clause
"""choose_qparams_affine: the scale and zero point of each block, as torchao chooses them."""

# ruff: noqa: A002, PLR0913  (the parameters and their names are torchao's)

from collections.abc import Sequence
from enum import Enum

import torch
from torch import Tensor

from blockscale.compat.torchao import kernels
from blockscale.compat.torchao.dtypes import (
    MappingType,
    Rule,
    ZeroPointDomain,
    check_float,
    check_float_dtype,
    check_holds,
    check_reaches,
    limits,
    read_rule,
)
from blockscale.compat.torchao.split import split_blocks


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
    Source: torchao 0.18.0, quantization/quant_primitives.py.
    """
    check_float(input, "input")
    rule = read_rule(mapping_type, zero_point_domain, preserve_zero)
    codes = limits(target_dtype, quant_min, quant_max)
    split = split_blocks(input.shape, block_size)
    found = kernels.chosen(input.detach(), split, rule, codes, eps)
    if found is not None:
        shape = split.counts if keepdim else split.outside
        scale, zero_point = (None if part is None else part.reshape(shape) for part in found)
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
