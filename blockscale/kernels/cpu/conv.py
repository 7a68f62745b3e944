# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions: of planes of x, patches of it as rows of an integer linear layer, lines of it where
they lie, or torch's in float32 (`blockscale.kernels.cpu.conv_way` says which). Also of codes,
channels last, with what follows them: bias, activation, codes.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.arithmetic.precision import float32_inside
from blockscale.core.format import Format
from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer, Value
from blockscale.core.pack import from_stored
from blockscale.core.reference import QParams
from blockscale.kernels.cpu import _native
from blockscale.kernels.cpu.conv_way import (
    ConvWay,
    Image,
    by_patches,
    chosen,
    direct,
    shares_a_scale,
)
from blockscale.kernels.cpu.linear import (
    Result,
    finish,
    float_bias,
    from_codes,
    given_parts,
    row_block,
    takes,
)
from blockscale.kernels.cpu.native import (
    DTYPES,
    addresses,
    channels_last,
    floats,
    known,
    linear_weight,
    native,
    threads,
)
from blockscale.kernels.cpu.quantize import dequantize, fake_quantize, patterns
from blockscale.kernels.operand import new
from blockscale.kernels.registry import kernel

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}

Sizes = list[int]
Settings = tuple[Sizes, Sizes, Sizes]  # stride, padding, dilation


class ConvWindow(NamedTuple):
    """Patches of codes.

    numbers: as `window` of src/bind_linear.cpp takes them; shape: of the result, channels last
    block:   codes of a pixel that share a scale; 0: one for all of x
    own:     patches are the pixels of x as they are
    """

    numbers: list[int]
    block: int
    shape: tuple[int, ...]
    own: bool = False


class InputCodes(NamedTuple):
    """x [batch, *size, channels] as codes, one a byte, and the parts beside them."""

    data: Tensor
    parts: QParams
    fmt: str


@kernel("conv", backend="cpu", supports=known)
def conv(
    x: Tensor,
    weight: Operand,
    bias: Tensor | None,
    shape: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
    input: Quantizer = UNQUANTIZED,
) -> Tensor:
    """As ops.conv.conv."""
    check_weight(weight, shape)
    settings = (stride, padding, dilation)
    if x.ndim == len(shape) and x.shape[1] == shape[1] * groups and x.dtype in DTYPES:
        offset = None if bias is None else float_bias(bias, shape[0])
        plain = Result(offset, "", x.dtype, UNQUANTIZED, channels_first=True)
        y = _of_ours(x, weight, shape, settings, groups, input, plain)
        if y is not None:
            return y[0]
    return _by_torch(x, weight, bias, shape, settings, groups, input)


def _of_ours(
    x: Tensor,
    weight: Operand,
    shape: Sizes,
    settings: Settings,
    groups: int,
    by: Quantizer,
    result: Result,
) -> list[Tensor] | None:
    """The convolution the way that its sizes say, or None where none of ours can give it."""
    info = (tuple(shape), groups, by.fmt, weight.fmt, _native.isa())
    match_ = chosen(*info, channels_last=_lies_last(x))
    if match_ is ConvWay.PLANES:
        y = _by_planes(x, weight, shape, settings, groups, by, result)
        if y is not None:
            return y
        match_ = chosen(*info, channels_last=True)
    if match_ is ConvWay.PATCHES:
        return _as_integers(x, weight, shape, settings, by, result)
    if match_ is ConvWay.DIRECT:
        return directly(_image(x, by), weight, shape, settings, groups, result)
    return None


def _by_torch(
    x: Tensor,
    weight: Operand,
    bias: Tensor | None,
    shape: Sizes,
    settings: Settings,
    groups: int,
    by: Quantizer,
) -> Tensor:
    """The weight lies as x does: torch copies x otherwise."""
    dense = from_stored(dequantize(weight, torch.float32), "channels_last", shape)
    if by.fmt:
        values = fake_quantize(channels_last(x.to(torch.float32)), by).movedim(-1, 1)
    else:
        values = floats(x)[0].to(torch.float32)  # refuses what the reference refuses
        dense = dense.flatten().view(shape)  # also the strides of dimensions of 1
    offset = None if bias is None else bias.to(torch.float32)
    with float32_inside(x):
        y = CONV[len(shape) - 2](values, dense, offset, *settings, groups)
    return y.to(x.dtype).contiguous()


def check_weight(weight: Operand, shape: Sizes) -> None:
    """Raise ValueError if the codes of a weight are not those of this shape."""
    rows, size = weight.codes.shape[0], prod(shape[1:])
    if size != weight.size:
        raise ValueError(f"a weight of shape {shape} has rows of {size}, found {weight.size}")
    if rows != shape[0]:
        raise ValueError(f"a weight of shape {shape} has {shape[0]} rows, found {rows}")


def _as_integers(
    x: Tensor, weight: Operand, shape: Sizes, settings: Settings, by: Quantizer, result: Result
) -> list[Tensor] | None:
    """The convolution by integer arithmetic, or None where that cannot give it."""
    shared = row_block(by.fmt, x.ndim) == 0
    if by.scale is not None and not shared:
        return None
    places = window((x.shape[0], *x.shape[2:], x.shape[1]), shape, settings, by.fmt)
    if places is None:
        return None
    if shared and not x.movedim(1, -1).is_contiguous():  # bytes are sooner turned than floats
        codes, parts = patterns(x, by)
        codes = channels_last(codes)
    else:
        codes, parts = patterns(channels_last(x), by)
    return _of_patches(InputCodes(codes, parts, by.fmt), weight, places, result)


def _by_planes(
    x: Tensor,
    weight: Operand,
    shape: Sizes,
    settings: Settings,
    groups: int,
    by: Quantizer,
    result: Result,
) -> list[Tensor] | None:
    """The convolution of x [batch, channels, *size] where it lies, quantized on the way, or None
    where that cannot be."""
    x, dtype = floats(x)
    out, numbers = _geometry(tuple(x.shape), tuple(shape), *map(tuple, settings))
    if 0 in out:
        return None
    handle, scale, zero, parts = None, 0, 0, None
    if by.fmt:
        form = native(by.fmt)
        handle = form.handle
        if by.scale is not None:
            parts = form.checked_parts(x.shape, by.scale, by.zero_point, by.outer, more=by.more)
            scale, _, zero, _ = addresses(parts)
    y, bias = new(out, result.dtype), result.bias
    ran = linear_weight(weight).planes(
        handle, x.data_ptr(), dtype, scale, zero, out[0], groups, numbers,
        0 if bias is None else bias.data_ptr(), y.data_ptr(), DTYPES[y.dtype], threads(),
    )  # fmt: skip
    return [y] if ran else None


@lru_cache(1024)
def _geometry(
    x: tuple[int, ...], shape: tuple[int, ...], *settings: tuple[int, ...]
) -> tuple[tuple[int, ...], list[int]]:
    """The shape of the result, channels first, with a 0 where there is none; and `_numbers`."""
    stride, padding, dilation = (list(each) for each in settings)
    batch, channels, *size = x
    out = sizes_after(size, list(shape), (stride, padding, dilation))
    numbers = _numbers(size, out, list(shape), (stride, padding, dilation), channels)
    return (batch, shape[0], *(max(0, each) for each in out)), numbers


def _image(x: Tensor, by: Quantizer) -> Image:
    """x as the direct kernel takes it."""
    if not by.fmt:
        return Image(channels_last(floats(x)[0]))
    if not shares_a_scale(by.fmt, x.ndim):
        return Image(fake_quantize(channels_last(x.to(torch.float32)), by))
    codes, parts = patterns(x.movedim(1, -1) if _lies_last(x) else x, by)
    return Image(codes if _lies_last(x) else channels_last(codes), by.fmt, parts)


def _lies_last(x: Tensor) -> bool:
    """Whether the channels of x [batch, channels, *size] lie last in memory."""
    return not x.is_contiguous() and x.movedim(1, -1).is_contiguous()


def directly(
    x: Image, weight: Operand, shape: Sizes, settings: Settings, groups: int, result: Result
) -> list[Tensor] | None:
    """The convolution by vectors of float32, or None where these cannot give it."""
    batch, *size, channels = x.data.shape
    out = sizes_after(size, shape, settings)
    if min(batch, *out) <= 0:
        return None
    numbers = _numbers(size, out, shape, settings, channels)
    return direct(x, linear_weight(weight), numbers, groups, (batch, *out, shape[0]), result)


def sizes_after(size: Sequence[int], shape: Sizes, settings: Settings) -> list[int]:
    """The sizes of the result."""
    stride, padding, dilation = settings
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, shape[2:], strict=True)]
    return [
        (n + 2 * p - span) // s + 1
        for n, p, span, s in zip(size, padding, spans, stride, strict=True)
    ]


def _numbers(
    size: Sequence[int], out: Sequence[int], shape: Sizes, settings: Settings, channels: int
) -> list[int]:
    stride, padding, dilation = settings
    return [*shape[2:], *size, *out, *stride, *padding, *dilation, channels]


def window(x: Sequence[int], shape: Sizes, settings: Settings, fmt: str) -> ConvWindow | None:
    """How patches of codes x [batch, *size, channels] become rows of an integer linear layer.

    None where that cannot be or does not pay.
    """
    out = sizes_after(x[1:-1], shape, settings)
    if min(x[0], *out) <= 0 or not by_patches(shape, fmt, _native.isa()):
        return None
    stride, padding, _ = settings
    own = (prod(shape[2:]), max(stride), max(padding)) == (1, 1, 0) and native(fmt).bits == 8
    numbers = _numbers(x[1:-1], out, shape, settings, shape[1])
    block = min(row_block(fmt, len(x)) or 0, shape[1])
    return ConvWindow(numbers, block, (x[0], *out, shape[0]), own)


def _of_patches(
    x: InputCodes, weight: Operand, places: ConvWindow, result: Result
) -> list[Tensor] | None:
    form, numbers = native(x.fmt), () if places.own else places.numbers
    return from_codes(
        linear_weight(weight), x.data, x.parts, form, places.block, numbers, places.shape, result
    )


def codes_of(x: Value) -> InputCodes:
    """Codes x [batch, *size, channels] a byte each, so that patches and pixels begin on one."""
    form, size = native(x.fmt), (*x.data.shape[:-1], x.size)
    codes, parts = form.checked_codes(x.data, size), given_parts(form, size, x)
    if form.bits < 8:
        packed, codes = codes, form.new_patterns(size)
        rows = codes.numel() // x.size
        _native.unpack(form.bits, packed.data_ptr(), rows, x.size, codes.data_ptr(), threads())
    return InputCodes(codes, parts, x.fmt)


def of_codes(
    x: Value, weight: Operand, shape: Sizes, settings: Settings, result: Result
) -> list[Tensor] | None:
    """The product of patches of codes x [batch, *size, channels] and the weight, channels last.

    None where integer arithmetic cannot give it or does not pay.
    """
    places = window((*x.data.shape[:-1], x.size), shape, settings, x.fmt)
    return None if places is None else _of_patches(codes_of(x), weight, places, result)


# Convolutions of codes, channels last, and what follows them: bias, activation, codes.


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
    return min(size[0], *out) > 0 and _way(x, weight.fmt, shape, groups) is not ConvWay.TORCH


def _way(x: Value, weight_fmt: str, shape: Sizes, groups: int) -> ConvWay:
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
    if _way(x, weight.fmt, shape, groups) is ConvWay.PATCHES:
        output = of_codes(x, whole, shape, settings, result)
    else:
        output = directly(_image_of_codes(x), whole, shape, settings, groups, result)
    return _codes_by_torch(x, whole, shape, settings, groups, result) if output is None else output


def _image_of_codes(x: Value) -> Image:
    """x as the direct kernel takes it."""
    if not x.fmt:
        return Image(floats(x.data)[0])
    if not shares_a_scale(x.fmt, x.data.ndim):
        return Image(dequantize(x.operand, torch.float32))
    codes = codes_of(x)
    return Image(codes.data, x.fmt, codes.parts)


def _codes_by_torch(
    x: Value, weight: Operand, shape: Sizes, settings: Settings, groups: int, result: Result
) -> list[Tensor]:
    """In float32, where a scale or a zero point is out of range, or the weight is not finite."""
    values = dequantize(x.operand, torch.float32) if x.fmt else x.data.to(torch.float32)
    values = values.movedim(-1, 1)
    dense = from_stored(dequantize(weight, torch.float32), "channels_last", shape)
    with float32_inside(values):
        y = CONV[len(shape) - 2](values, dense, result.bias, *settings, groups)
    return finish(y.movedim(1, -1).contiguous().to(result.dtype), result)
