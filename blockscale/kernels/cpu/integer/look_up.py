# SPDX-License-Identifier: BSD-3-Clause
"""Tables, and the door where floats come in."""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.operand import Operand, Quantizer
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.kernels.cpu import _native
from blockscale.kernels.cpu.native import channels_first, native, threads
from blockscale.kernels.cpu.quantize import dequantize as numbers
from blockscale.kernels.cpu.quantize import quantize as quantize_by
from blockscale.kernels.cpu.quantize import quantize_whole
from blockscale.kernels.operand import in_order, new
from blockscale.kernels.registry import kernel


def _supports(formats: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    del formats
    x, table = arguments
    if x.numel() == 0 or table.itemsize > 4:
        return False
    narrow = x.dtype in (torch.int8, torch.uint8) and table.shape[0] == 256
    return narrow or (x.dtype == torch.int16 and table.shape[0] == 65536)


@kernel("integer_look_up", backend="cpu", supports=_supports)
def look_up(x: Tensor, table: Tensor) -> Tensor:
    """As ops.integer.elementwise.look_up."""
    codes, entries = in_order(x), in_order(table)
    values = new(tuple(codes.shape), entries.dtype)
    run = _native.look_up if codes.itemsize == 1 else _native.look_up_wide
    run(
        entries.data_ptr(), entries.itemsize, codes.data_ptr(), codes.numel(), values.data_ptr(),
        threads(),
    )  # fmt: skip
    return values


def _supports_quantize(formats: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    del formats
    x, exponent, _, fmt = arguments
    floats = x.dtype in (torch.float32, torch.bfloat16, torch.float16)
    return floats and parse(fmt).bits in (8, 16) and -126 <= exponent <= 127


@kernel("integer_quantize", backend="cpu", supports=_supports_quantize)
def quantize(x: Tensor, exponent: int, zero: int, fmt: str) -> Tensor:
    """As ops.integer.elementwise.quantize."""
    by = _quantizer(exponent, zero, fmt, x.ndim)
    if not x.is_contiguous() or not x.numel():
        return quantize_by(x, by)
    return quantize_whole(x, by.fmt, _parts(exponent, zero, fmt, x.ndim))


@lru_cache(256)
def _under_one(fmt: str) -> str:
    """The format of the same codes with one float scale, which will be 1."""
    form: Format = parse(fmt)
    options = ["asym"] if form.asym else ["full"] if form.span else []
    options += [form.rounding] if form.rounding != "nearest_even" else []
    return ":".join([form.element.name, "tensor", "fp32", *options])


@lru_cache(256)
def _quantizer(exponent: int, zero: int, fmt: str, rank: int) -> Quantizer:
    """Under the scale 2^exponent."""
    ones = (1,) * rank
    point = torch.full(ones, zero, dtype=torch.int32) if parse(fmt).asym else None
    return Quantizer(torch.full(ones, 2.0**exponent), point, None, _under_one(fmt))


@lru_cache(256)
def _parts(exponent: int, zero: int, fmt: str, rank: int) -> QParams:
    """What fits any tensor of this rank: seen once, not at each call."""
    by = _quantizer(exponent, zero, fmt, rank)
    assert by.scale is not None
    return native(by.fmt).checked_parts((1,) * rank, by.scale, by.zero_point, None)


@lru_cache(256)
def _power(exponent: int) -> Tensor:
    return torch.tensor(2.0**exponent, dtype=torch.float32)


_CODES = {
    torch.int8: "int8:tensor:fp32:asym",
    torch.uint8: "uint8:tensor:fp32:asym",
    torch.int16: "int16:tensor:fp32:asym",
}


def _supports_dequantize(formats: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    del formats
    x, zero, exponent = arguments
    narrow = abs(zero) <= 2**16 if x.dtype in _CODES else x.dtype == torch.int32 and not zero
    return narrow and -126 <= exponent <= 127


@kernel("integer_dequantize", backend="cpu", supports=_supports_dequantize)
def dequantize(x: Tensor, zero: int, exponent: int) -> Tensor:
    """As ops.integer.elementwise.dequantize: one rounding, that of int32 to float32."""
    codes = channels_first(x)
    if codes.dtype == torch.int32 or not codes.ndim:
        if not zero:  # one op, in float32 whatever torch's default is
            return torch.mul(codes, _power(exponent))
        return codes.to(torch.float32).sub_(zero).mul_(2.0**exponent)
    by = _quantizer(exponent, zero, _CODES[codes.dtype], codes.ndim)
    assert by.scale is not None
    whole = Operand(codes, by.scale, by.zero_point, None, by.fmt, codes.shape[-1])
    return numbers(whole, torch.float32)
