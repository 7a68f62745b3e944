# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions of codes, channels last, and what follows them: bias, activation, codes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from blockscale.core.arithmetic.precision import float32_inside
from blockscale.core.format import Format
from blockscale.core.operand import Operand, Quantizer, Value
from blockscale.core.pack import from_stored
from blockscale.kernels.cpu import _native
from blockscale.kernels.cpu.conv import (
    CONV,
    Settings,
    Sizes,
    check_weight,
    codes_of,
    directly,
    of_codes,
    sizes_after,
)
from blockscale.kernels.cpu.conv_way import Way, chosen, shares_a_scale
from blockscale.kernels.cpu.direct_conv import Image
from blockscale.kernels.cpu.linear import Result, finished, float_bias, takes
from blockscale.kernels.cpu.native import floats, known
from blockscale.kernels.cpu.quantize import dequantize
from blockscale.kernels.registry import kernel


def _supports(formats: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    """What does not run by torch; what the op is composed of does that as well."""
    x, weight, _, shape, stride, padding, dilation, groups, transposed, _, activation, dtype, _ = (
        arguments
    )
    if transposed or not takes(x, weight, activation, dtype) or not known(formats, arguments):
        return False
    size = (*x.data.shape[:-1], x.size) if x.fmt else x.data.shape
    if len(size) != len(shape) or size[-1] != shape[1] * groups:
        return False
    out = sizes_after(size[1:-1], shape, (stride, padding, dilation))
    return min(size[0], *out) > 0 and _way(x, weight.fmt, shape, groups) is not Way.TORCH


def _way(x: Value, weight_fmt: str, shape: Sizes, groups: int) -> Way:
    return chosen(tuple(shape), groups, x.fmt, weight_fmt, _native.isa(), channels_last=True)


@kernel("fused_conv", backend="cpu", supports=_supports)
def fused_conv(
    x: Value,
    weight: Value,
    bias: Tensor | None,
    shape: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
    transposed: bool,
    output_padding: Sequence[int],
    activation: str,
    dtype: torch.dtype,
    y: Quantizer,
) -> list[Tensor]:
    """As ops.fused.products.conv."""
    del transposed, output_padding  # `_supports` has said what they are
    whole, settings = weight.operand, (stride, padding, dilation)
    check_weight(whole, shape)
    offset = None if bias is None else float_bias(bias, shape[0])
    result = Result(offset, activation, dtype, y)
    if _way(x, weight.fmt, shape, groups) is Way.PATCHES:
        made = of_codes(x, whole, shape, settings, result)
    else:
        made = directly(_image(x), whole, shape, settings, groups, result)
    return _by_torch(x, whole, shape, settings, groups, result) if made is None else made


def _image(x: Value) -> Image:
    """x as the direct kernel takes it."""
    if not x.fmt:
        return Image(floats(x.data)[0])
    if not shares_a_scale(x.fmt, x.data.ndim):
        return Image(dequantize(x.operand, torch.float32))
    codes = codes_of(x)
    return Image(codes.data, x.fmt, codes.parts)


def _by_torch(
    x: Value, weight: Operand, shape: Sizes, settings: Settings, groups: int, result: Result
) -> list[Tensor]:
    """In float32, where a scale or a zero point is out of range, or the weight is not finite."""
    values = dequantize(x.operand, torch.float32) if x.fmt else x.data.to(torch.float32)
    values = values.movedim(-1, 1)
    dense = from_stored(dequantize(weight, torch.float32), "channels_last", shape)
    with float32_inside(values):
        y = CONV[len(shape) - 2](values, dense, result.bias, *settings, groups)
    return finished(y.movedim(1, -1).contiguous().to(result.dtype), result)
