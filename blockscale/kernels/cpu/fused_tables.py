# SPDX-License-Identifier: BSD-3-Clause
"""Fused kernels of 8-bit codes: tables of functions, ops of two tensors, pooling."""

import math
from collections.abc import Sequence
from ctypes import string_at
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.operand import Quantizer, Value
from blockscale.core.parse import parse
from blockscale.kernels.cpu import _native
from blockscale.kernels.cpu.fused_rows import (
    FusedResult,
    Shape,
    check_scale,
    readable,
    rows_of,
    shape_of,
    writable,
)
from blockscale.kernels.cpu.native import FAMILIES, FEATURES, native, threads
from blockscale.kernels.cpu.quantize import unpack_into
from blockscale.kernels.numbers import supports_families
from blockscale.kernels.operand import in_order, new
from blockscale.kernels.registry import kernel, use

# Functions of codes with one scale: all their results in a table, which codes are looked up in.
#
# The op's own reference makes the table, of all codes there are, so nothing can be otherwise than
# the reference has it. Tables are kept by what the numbers of a call are, not by tensors: a scale
# that changes gives another table.

OPS = (
    *("relu", "relu6", "hardtanh", "leaky_relu", "elu", "hardsigmoid", "hardswish", "sigmoid"),
    *("tanh", "gelu", "silu", "mish", "softplus", "exp", "sqrt", "rsqrt", "neg", "abs", "clamp"),
    *("reciprocal", "add_scalar", "sub_scalar", "rsub_scalar", "mul_scalar", "div_scalar"),
    *("pow_scalar", "requantize"),
)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MOST_TABLES = 512
_known = supports_families(FAMILIES, FEATURES)
_tables: dict[Any, Tensor] = {}


class TableCall(NamedTuple):
    """A call of `fused_<op>`, whose result is in `fmt` if that is not empty."""

    op: str
    value: Value
    settings: tuple[Any, ...]
    dtype: torch.dtype
    y: Quantizer


def supports(formats: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    """Codes of up to 8 bits with one scale become such codes under a given one, or floats."""
    value, dtype, y = arguments[0], arguments[-2], arguments[-1]
    if not value.fmt or not _known(formats) or not value.data.is_cpu:
        return False
    shape = shape_of(value)
    if not shape or not math.prod(shape) or not _single(value.fmt, shape) or dtype not in DTYPES:
        return False
    if not y.fmt:
        return True
    stochastic = parse(y.fmt).rounding == "stochastic"
    return y.scale is not None and not stochastic and _single(y.fmt, shape)


@lru_cache(1024)
def _single(fmt: str, shape: Shape) -> bool:
    """Whether one scale is for all of a tensor of `shape`, and of a table's codes as well."""
    form = parse(fmt)
    if form.bits > 8 or math.prod(form.block.scale_shape(shape)) != 1:
        return False
    return math.prod(form.block.scale_shape((2**form.bits,))) == 1


def look_up(call: TableCall) -> list[Tensor]:
    """The op's result. Raises ValueError if codes or scales do not fit their format."""
    value, y = call.value, call.y
    table = _table(call)
    n, shape = native(value.fmt), value.operand.shape
    codes = n.checked_codes(value.data, shape)
    if not n.bytewise:
        patterns = n.new_patterns(shape)
        unpack_into(n, codes, shape[-1], patterns)
        codes = patterns
    result = new(shape, table.dtype)
    _native.look_up(
        table.data_ptr(), table.itemsize, codes.data_ptr(), codes.numel(), result.data_ptr(),
        threads(),
    )  # fmt: skip
    if not y.fmt or native(y.fmt).bytewise:
        return [result]
    packed = native(y.fmt).new_packed(shape)
    _pack(y.fmt, result, shape[-1], packed)
    return [packed]


def _pack(fmt: str, patterns: Tensor, size: int, packed: Tensor) -> None:
    """One code an entry -> packed rows of `size` codes."""
    rows = patterns.numel() // size
    addresses = patterns.data_ptr(), rows, size, packed.data_ptr()
    _native.pack(native(fmt).bits, *addresses, threads())


def _table(call: TableCall) -> Tensor:
    """The result for each of 256 codes: floats, or codes one to an entry.

    An element of fewer bits has its codes in it several times.
    """
    op, value, settings, dtype, y = call
    key = (op, *settings, dtype, value.fmt, _numbers(value), y.fmt, _numbers(y))
    setting = _tables.get(key)
    if setting is None:
        setting = _results_of_codes(call)
        if len(_tables) >= MOST_TABLES:  # of scales that may never come again
            _tables.clear()
        _tables[key] = setting
    return setting


def _numbers(of: Value | Quantizer) -> tuple[Any, ...]:
    """What stands beside codes: each part's dtype, shape and bytes."""
    parts = (of.scale, of.zero_point, of.outer, *(of.more or ()))
    return tuple(None if part is None else (part.dtype, part.shape, _bytes(part)) for part in parts)


def _bytes(part: Tensor) -> bytes:
    part = in_order(part)
    return string_at(part.data_ptr(), part.nbytes)


def _results_of_codes(call: TableCall) -> Tensor:
    """All codes in one row through the op's reference."""
    value, y = call.value, call.y
    n = native(value.fmt)
    check_scale(value.fmt, (256,), value)
    if y.fmt:
        check_scale(y.fmt, (256,), y)
    patterns = torch.arange(256).remainder(2**n.bits).to(torch.uint8)
    codes = patterns.view(n.packed_dtype)
    if not n.bytewise:
        codes = n.new_packed((256,))
        _pack(value.fmt, patterns, 256, codes)
    run = getattr(torch.ops.blockscale, f"fused_{call.op}")
    by = [_of_rank_one(part) for part in (y.scale, y.zero_point, y.outer)]
    beside = [_of_rank_one(part) for part in (value.scale, value.zero_point, value.outer)]
    more = [[_of_rank_one(p) for p in of.more] if of.more else None for of in (value, y)]
    with use("reference"):
        (result,) = run(
            codes, *beside, value.fmt, 256, *call.settings, call.dtype, *by, y.fmt, None, *more
        )
    if not y.fmt or native(y.fmt).bytewise:
        return result
    back = native(y.fmt).new_patterns((256,))
    unpack_into(native(y.fmt), result, 256, back)
    return back


def _of_rank_one(part: Tensor | None) -> Tensor | None:
    """One number for a row of codes; parts that are more than that stay, and misfit."""
    return part.reshape(1) if part is not None and part.numel() == 1 else part


def _register(op: str) -> None:
    @kernel(f"fused_{op}", backend="cpu", supports=supports)
    def run(value: Value, *rest: Any) -> list[Tensor]:
        """As the op of blockscale.ops.fused."""
        return look_up(TableCall(op, value, rest[:-2], rest[-2], rest[-1]))


for _op in OPS:
    _register(_op)


# Sums, differences, products and quotients of tensors of one shape, codes or floats.

KINDS = {"add": 0, "sub": 1, "mul": 2, "div": 3}  # `Binary` of src/fused.h


def supports_two(formats: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    """Equal shapes, float32 within and without, and at least one side in codes.

    Not where a setting changes anything: a factor alpha, which torch may fuse into the sum.
    """
    a, b, *settings, dtype, y = arguments
    shape = shape_of(a)
    if not formats or dtype != torch.float32 or settings not in ([], [1.0], [None]):
        return False
    if shape != shape_of(b) or not shape or not math.prod(shape):
        return False
    return readable(a) and readable(b) and writable(y, shape)


def _register_two(op: str, kind: int) -> None:
    @kernel(f"fused_{op}", backend="cpu", supports=supports_two)
    def run(a: Value, b: Value, *rest: Any) -> list[Tensor]:
        """As the op of blockscale.ops.fused."""
        y: Quantizer = rest[-1]
        shape, results = shape_of(a), []  # type: ignore[var-annotated]
        result = FusedResult(y, shape)
        columns = shape[-1]
        _native.binary(
            kind, rows_of(a, results), rows_of(b, results), math.prod(shape) // columns, columns,
            result.floats, result.codes, result.has_scale, threads(),
        )  # fmt: skip
        return result.tensors


for _op, _kind in KINDS.items():
    _register_two(_op, _kind)


# Pools of largest values over codes of integers: the largest code is that of the largest value.
#
# Nothing is decoded. Windows are taken apart by dimensions: the largest along one, then along the
# next, each of as many shifted views as the window is wide. What the codes become then, other codes
# or floats, is looked up in a table.


def supports_pooling(formats: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    """Integers of 8 bits under one scale, and results that a table has; no empty windows."""
    value, dtype = arguments[0], arguments[-2]
    if not supports(formats, arguments):
        return False
    fmt = parse(value.fmt)
    keeps_order = fmt.element.integer and fmt.bits == 8 and fmt.span != "signed"
    return keeps_order and dtype == torch.float32


def max_pool(codes: Tensor, count: int, settings: Sequence[Any]) -> Tensor:
    """codes [..., *size] of int8 or uint8 -> the largest of each window over the last `count`.

    settings: kernel_size, stride, padding, dilation, ceil_mode, as torch's max pools have them
    """
    *four, ceil = settings
    kernel, stride, padding, dilation = (_each(list(each), count) for each in four)
    for i in range(count):
        window = (kernel[i], (stride or kernel)[i], padding[i], dilation[i])
        codes = _along(codes, codes.ndim - count + i, window, ceil)
    return codes


def _each(numbers: list[int], count: int) -> list[int]:
    return numbers * count if len(numbers) == 1 else numbers


def _along(codes: Tensor, dim: int, window: tuple[int, int, int, int], ceil: bool) -> Tensor:
    """The largest along one dimension. Source of the sizes: torch, aten/native/Pool.h."""
    kernel, stride, padding, dilation = window
    size, reach = codes.shape[dim], dilation * (kernel - 1) + 1
    rest = size + 2 * padding - reach
    count = (-(-rest // stride) if ceil else rest // stride) + 1
    if ceil and (count - 1) * stride >= size + padding:
        count -= 1  # the last window begins in the picture or its padding before it
    behind = max((count - 1) * stride + reach - size - padding, 0)
    if padding or behind:
        ends = [0, 0] * (codes.ndim - 1 - dim) + [padding, behind]
        codes = F.pad(codes, ends, value=torch.iinfo(codes.dtype).min)
    last = (count - 1) * stride + 1
    views = [
        codes.narrow(dim, i * dilation, last)[(slice(None),) * dim + (slice(None, None, stride),)]
        for i in range(kernel)
    ]
    return reduce(torch.maximum, views)


def _register_pooling(op: str, count: int) -> None:
    @kernel(f"fused_{op}", backend="cpu", supports=supports_pooling)
    def run(value: Value, *rest: Any) -> list[Tensor]:
        """As the op of blockscale.ops.fused."""
        *settings, dtype, y = rest
        codes = max_pool(value.data, count, settings).contiguous()
        result = value._replace(data=codes, size=codes.shape[-1])
        return look_up(TableCall("requantize", result, (), dtype, y))


for _count in (1, 2, 3):
    _register_pooling(f"max_pool{_count}d", _count)
