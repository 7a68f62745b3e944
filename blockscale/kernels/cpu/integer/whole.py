# SPDX-License-Identifier: BSD-3-Clause
"""Sums, norms and attention of integers in C++ (src/isa/integer), which round half to even."""

from typing import Any

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.kernels.cpu import _native
from blockscale.kernels.cpu.native import threads
from blockscale.kernels.operand import in_order, new
from blockscale.kernels.registry import kernel

TYPES = {torch.int8: 0, torch.uint8: 1, torch.int16: 2, torch.int32: 3}  # `Whole` of integer.h
_MOST_RIGHT = 30  # of an exponent's shift: what it is of then fits in 31 bits


def ends(fmt: str, shift: Tensor) -> bool:
    """Whether the C++ ends in these codes."""
    if not fmt or shift.numel() != 1:
        return False
    form = parse(fmt)
    return form.rounding == "nearest_even" and form.element.code_dtype in TYPES


def _ending(y: Tensor, shift: Tensor, zero: int, low: int, high: int) -> tuple[int, ...]:
    """As `Ending` of src/fused/integer.h."""
    return y.data_ptr(), TYPES[y.dtype], int(shift), zero, low, high


def _integers(x: Tensor, zero: int) -> tuple[int, int, int]:
    """As `Integers` of src/fused/integer.h."""
    return x.data_ptr(), TYPES[x.dtype], zero


def _supports_rescale(formats: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    del formats
    x, _, shift, *_, fmt = arguments
    return x.dtype in TYPES and x.numel() > 0 and ends(fmt, shift)


@kernel("integer_rescale", backend="cpu", supports=_supports_rescale)
def rescale(
    x: Tensor, x_zero: int, shift: Tensor, zero: int, low: int, high: int, fmt: str
) -> Tensor:
    """As ops.integer.shifts.rescale."""
    codes = in_order(x)
    y = new(tuple(x.shape), parse(fmt).element.code_dtype)
    largest = torch.iinfo(x.dtype).max + abs(x_zero) + 1
    _native.integer_sum(
        _integers(codes, x_zero), (0, 0, 0), 0, 0, 1, largest, codes.numel(),
        _ending(y, shift, zero, low, high), threads(),
    )  # fmt: skip
    return y


def _supports_two(formats: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    del formats
    a, b, *_, shift, _zero, _low, _high, fmt = arguments
    fits = a.dtype in TYPES and b.dtype in TYPES and a.numel() > 0 and b.numel() > 0
    return fits and ends(fmt, shift)


@kernel("integer_add", backend="cpu", supports=_supports_two)
def add(
    a: Tensor, b: Tensor, a_zero: int, b_zero: int, a_shift: int, b_shift: int, b_sign: int,
    largest: int, shift: Tensor, zero: int, low: int, high: int, fmt: str,
) -> Tensor:  # fmt: skip
    """As ops.integer.elementwise.add."""
    end = (shift, zero, low, high, fmt)
    return _two(a, b, (a_zero, b_zero), (a_shift, b_shift, b_sign), largest, end)


@kernel("integer_mul", backend="cpu", supports=_supports_two)
def mul(
    a: Tensor, b: Tensor, a_zero: int, b_zero: int, largest: int, shift: Tensor, zero: int,
    low: int, high: int, fmt: str,
) -> Tensor:  # fmt: skip
    """As ops.integer.elementwise.mul."""
    return _two(a, b, (a_zero, b_zero), (0, 0, 0), largest, (shift, zero, low, high, fmt))


def _two(
    a: Tensor, b: Tensor, zeros: tuple[int, int], shifts: tuple[int, int, int], largest: int,
    end: tuple[Tensor, int, int, int, str],
) -> Tensor:  # fmt: skip
    """shifts: to the left, of a and of b, and the sign of b; 0: the product."""
    whole = torch.broadcast_tensors(a, b) if a.shape != b.shape else (a, b)
    left, right = in_order(whole[0]), in_order(whole[1])
    shift, zero, low, high, fmt = end
    y = new(tuple(left.shape), parse(fmt).element.code_dtype)
    _native.integer_sum(
        _integers(left, zeros[0]), _integers(right, zeros[1]), *shifts, largest, y.numel(),
        _ending(y, shift, zero, low, high), threads(),
    )  # fmt: skip
    return y


def _supports_norm(formats: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    del formats
    x, *_, shift, _zero, _low, _high, fmt = arguments
    return x.dtype in TYPES and x.numel() > 0 and ends(fmt, shift)


@kernel("integer_layer_norm", backend="cpu", supports=_supports_norm)
def layer_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, x_zero: int, centered: bool,
    epsilon: int, shift: Tensor, zero: int, low: int, high: int, fmt: str,
) -> Tensor:  # fmt: skip
    """As ops.integer.norms.layer_norm."""
    codes, columns = in_order(x), x.shape[-1]
    y = new(tuple(x.shape), parse(fmt).element.code_dtype)
    scale = None if weight is None else in_order(weight)
    offset = None if bias is None else in_order(bias)
    _native.integer_norm(
        _integers(codes, x_zero), 0 if scale is None else scale.data_ptr(),
        0 if offset is None else offset.data_ptr(), centered, epsilon, x.numel() // columns,
        columns, _ending(y, shift, zero, low, high), threads(),
    )  # fmt: skip
    return y


def _supports_attention(formats: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    del formats
    query, key, value, mask, _causal, _zeros, _factor, right, _table, shift, *_, fmt = arguments
    each = (query, key, value)
    if any(x.dtype not in (torch.int8, torch.uint8) or x.ndim not in (3, 4) for x in each):
        return False
    if len({x.ndim for x in each}) != 1 or any(x.numel() == 0 for x in each):
        return False
    if query.shape[:-3] != key.shape[:-3] or query.shape[-3] % key.shape[-3]:
        return False
    masked = mask is None or (mask.dtype == torch.bool and mask.ndim <= query.ndim)
    # sums of 16-bit products stay below the score of what is hidden
    return masked and right <= _MOST_RIGHT and query.shape[-1] <= 2**12 and ends(fmt, shift)


@kernel("integer_attention", backend="cpu", supports=_supports_attention)
def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool,
    zeros: list[int], factor: int, right: int, table: Tensor, shift: Tensor, zero: int, low: int,
    high: int, fmt: str,
) -> Tensor:  # fmt: skip
    """As ops.integer.softmax.attention."""
    q, k, v = (_rows(x) for x in (query, key, value))
    batch, heads, rows, depth = q.shape
    keys, width = v.shape[-2:]
    mask = None if mask is None else mask.expand(batch, heads, rows, keys)
    strides = [x.stride()[:3] for x in (q, k, v)]
    strides.append((0, 0, 0, 0) if mask is None else mask.stride())
    y = new((*query.shape[:-1], width), parse(fmt).element.code_dtype)
    entries = in_order(table)
    _native.integer_attention(
        tuple(_integers(x, z) for x, z in zip((q, k, v), zeros, strict=True)),
        0 if mask is None else mask.data_ptr(), strides,
        (batch, heads, heads // k.shape[1], rows, keys, depth, width), causal, factor, right,
        entries.data_ptr(), _ending(y, shift, zero, low, high), threads(),
    )  # fmt: skip
    return y


def _rows(x: Tensor) -> Tensor:
    """[batch, heads, rows, columns] with columns side by side; without a batch, of 1."""
    x = x if x.ndim == 4 else x[None]
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()
