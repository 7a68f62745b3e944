# SPDX-License-Identifier: BSD-3-Clause
"""Fused kernels that take row by row: norms, softmax, attention; and what fused kernels share."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.operand import Operand, Quantizer, Value
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.kernels.cpu import _native
from blockscale.kernels.cpu.native import FAMILIES, FEATURES, addresses, known, native, threads
from blockscale.kernels.cpu.quantize import dequantize
from blockscale.kernels.numbers import supports_families
from blockscale.kernels.operand import (
    added_scores,
    few_queries,
    in_order,
    new,
    present_parts,
    tokens_of,
)
from blockscale.kernels.registry import kernel

# Operands and results of fused ops as the C++ takes them: rows of floats, or of codes.

_known = supports_families(FAMILIES, FEATURES)
Shape = tuple[int, ...]


@lru_cache(1024)
def row_block(fmt: str, shape: Shape) -> int:
    """How many columns of a row share a scale: 0 if all rows share one, -1 for other blocks.

    -1 as well for two levels, for rows that end within a byte, and for elements that the C++ does
    not know.
    """
    if not _known((parse(fmt),)) or not shape or not native(fmt).packs(shape):
        return -1
    block: int = _native.row_block(native(fmt).handle, shape)
    return block


def shape_of(value: Value) -> Shape:
    """The shape of the tensor that a value stands for, as `traced`."""
    return traced(value.operand.shape if value.fmt else value.data.shape)


def traced(shape: Sequence[Any]) -> Shape:
    """A shape in numbers: of symbolic sizes those that a graph was traced with, without a guard.

    Graphs ask what supports their nodes. A size that depends on data counts as 0, which no kernel
    here takes.
    """
    return tuple(size if type(size) is int else (size.node.hint or 0) for size in shape)


def readable(value: Value) -> bool:
    """Whether the C++ reads it: float32, or codes whose scales lie along rows."""
    if not value.fmt:
        return value.data.dtype == torch.float32 and value.data.is_cpu
    return row_block(value.fmt, shape_of(value)) >= 0


def writable(y: Quantizer, shape: Shape) -> bool:
    """Whether the C++ writes a float32 result of this shape as `y` says, part by part."""
    if not y.fmt:
        return True
    block = row_block(y.fmt, shape)
    stochastic = parse(y.fmt).rounding == "stochastic"
    return not stochastic and (block > 0 or (block == 0 and y.scale is not None))


def rows_of(value: Value, keep: list[Tensor]) -> Any:
    """The `_native.Rows` of a value that is `readable`; `keep` takes what it refers to.

    Raises ValueError if codes or scales do not fit the format.
    """
    if not value.fmt:
        data = in_order(value.data)
        keep.append(data)
        return _native.Rows(data.data_ptr())
    n, shape = native(value.fmt), shape_of(value)
    codes = n.checked_codes(value.data, shape)
    parts = check_scale(value.fmt, shape, value)
    keep += [codes, *present_parts(parts)]
    block = row_block(value.fmt, shape)
    return _native.Rows(n.handle, block, codes.data_ptr(), addresses(parts))


class FusedResult:
    """Where a result of `shape` goes that is `writable`: new memory for it.

    values: also as floats; else only if nothing else is asked for
    tensors: what the op returns: [codes], [codes, *parts], or [floats]
    floats: the address of the floats, 0 for none
    codes: the `_native.Rows` of the codes, None for none
    """

    def __init__(self, y: Quantizer, shape: Shape, *, values: Tensor | None = None):
        self.has_scale = y.scale is not None
        self.codes: Any = None
        if not y.fmt:
            values = new(shape, torch.float32) if values is None else values
            self.tensors = [values]
        else:
            n = native(y.fmt)
            parts = check_scale(y.fmt, shape, y) if self.has_scale else n.new_parts(shape)
            codes = n.new_packed(shape)
            self.tensors = [codes] if self.has_scale else [codes, *present_parts(parts)]
            self._keep = parts
            place = addresses(parts)
            self.codes = _native.Rows(n.handle, row_block(y.fmt, shape), codes.data_ptr(), place)
        self.floats = 0 if values is None else values.data_ptr()


def check_scale(fmt: str, shape: Shape, of: Value | Quantizer) -> QParams:
    """A caller's scale for a tensor of `shape`. One number may be of any rank.

    Raises ValueError if it misfits.
    """
    n = native(fmt)
    assert of.scale is not None
    expected = n.scale_shape(shape)
    parts = (of.scale, of.zero_point)
    if math.prod(expected) == 1:
        parts = tuple(  # type: ignore[assignment]
            part.reshape(expected) if part is not None and part.numel() == 1 else part
            for part in parts
        )
    return n.checked_parts(shape, *parts, of.outer, more=of.more)


# Norms of rows, and of residual sums: read once, normalized and quantized while they are in L1.

Vector = Tensor | None


def _serves(values: list[Value], sizes: list[int], vectors: list[Vector], last: Any) -> bool:
    """Whether the C++ has the norm over the last dimension of these: in float32 throughout."""
    dtype, y = last
    shape = shape_of(values[0])
    if dtype != torch.float32 or not shape or not math.prod(shape) or sizes != [shape[-1]]:
        return False
    if any(v is not None and (v.dtype != dtype or list(v.shape) != sizes) for v in vectors):
        return False
    alike = all(shape_of(value) == shape and readable(value) for value in values)
    return alike and writable(y, shape)


def _supports_layer(_: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    a, sizes, weight, bias, _eps, *last = arguments
    return _serves([a], [*sizes], [weight, bias], last)


def _supports_rms(_: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    a, sizes, weight, _eps, *last = arguments
    return _serves([a], [*sizes], [weight], last)


def _supports_sum(_: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    a, b, sizes, weight, bias, _eps, *last = arguments
    return _serves([a, b], [*sizes], [weight, bias], last)


def _supports_residual(_: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    a, b, sizes, weight, bias, _eps, _keep, *last = arguments
    return _serves([a, b], [*sizes], [weight, bias], last)


def _supports_residual_rms(_: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    a, b, sizes, weight, _eps, _keep, *last = arguments
    return _serves([a, b], [*sizes], [weight], last)


@kernel("fused_layer_norm", backend="cpu", supports=_supports_layer)
def layer_norm(
    a: Value, sizes: list[int], weight: Vector, bias: Vector, eps: float, dtype: torch.dtype,
    y: Quantizer,
) -> list[Tensor]:  # fmt: skip
    """As ops.fused.norms.layer_norm."""
    del sizes, dtype
    return _norm(a, None, (True, eps), (weight, bias), "", y)


@kernel("fused_rms_norm", backend="cpu", supports=_supports_rms)
def rms_norm(
    a: Value, sizes: list[int], weight: Vector, eps: float | None, dtype: torch.dtype, y: Quantizer
) -> list[Tensor]:
    """As ops.fused.norms.rms_norm."""
    del sizes
    return _norm(a, None, (False, _eps(eps, dtype)), (weight, None), "", y)


@kernel("fused_add_layer_norm", backend="cpu", supports=_supports_sum)
def add_layer_norm(
    a: Value, b: Value, sizes: list[int], weight: Vector, bias: Vector, eps: float,
    dtype: torch.dtype, y: Quantizer,
) -> list[Tensor]:  # fmt: skip
    """As ops.fused.norms.add_layer_norm."""
    del sizes, dtype
    return _norm(a, b, (True, eps), (weight, bias), "", y)


@kernel("fused_residual_layer_norm", backend="cpu", supports=_supports_residual)
def residual_layer_norm(
    a: Value, b: Value, sizes: list[int], weight: Vector, bias: Vector, eps: float, keep: str,
    dtype: torch.dtype, y: Quantizer,
) -> list[Tensor]:  # fmt: skip
    """As ops.fused.residual.residual_layer_norm."""
    del sizes, dtype
    return _norm(a, b, (True, eps), (weight, bias), keep, y)


@kernel("fused_residual_rms_norm", backend="cpu", supports=_supports_residual_rms)
def residual_rms_norm(
    a: Value, b: Value, sizes: list[int], weight: Vector, eps: float | None, keep: str,
    dtype: torch.dtype, y: Quantizer,
) -> list[Tensor]:  # fmt: skip
    """As ops.fused.residual.residual_rms_norm."""
    del sizes
    return _norm(a, b, (False, _eps(eps, dtype)), (weight, None), keep, y)


def _eps(eps: float | None, dtype: torch.dtype) -> float:
    """torch.rms_norm's own where none is given."""
    return torch.finfo(dtype).eps if eps is None else eps


def _norm(
    a: Value, b: Value | None, how: tuple[bool, float], vectors: tuple[Vector, Vector], keep: str,
    y: Quantizer,
) -> list[Tensor]:  # fmt: skip
    """The norm of a + b (of a, if b is None).

    how: whether the mean is taken off, and eps
    vectors: weight and bias
    keep: "sum" or "norm": these floats stand before the result
    """
    shape, alive = shape_of(a), list[Tensor]()
    operands = rows_of(a, alive), None if b is None else rows_of(b, alive)
    scaled = [None if v is None else in_order(v) for v in vectors]
    sums = new(shape, torch.float32) if keep == "sum" else None
    values = new(shape, torch.float32) if keep == "norm" else None
    result = FusedResult(y, shape, values=values)
    size = math.prod(shape)
    _native.norm(
        *how, *(_address(v) for v in scaled), *operands, size // shape[-1], shape[-1],
        _address(sums), result.floats, result.codes, result.has_scale, threads(),
    )  # fmt: skip
    tensors = result.tensors
    if values is not None and not y.fmt:
        tensors = [values.clone()]  # an op's results share no memory
    return [part for part in (sums, values) if part is not None] + tensors


def _address(of: Vector) -> int:
    return 0 if of is None else of.data_ptr()


# Attention in float32: codes become floats, and the result codes while it is in the cache.

MASKS = (torch.bool, torch.float32, torch.bfloat16, torch.float16)
EACH = 16  # columns of a value that the kernel takes at a time


def supports(formats: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    """Of [batch, heads, rows, depth] or without batch, heads alike or shared by `enable_gqa`."""
    query, key, value, mask, causal, _scale, shared, dtype, y = arguments
    if dtype != torch.float32 or not known(formats, arguments) or (causal and mask is not None):
        return False
    if not all(each.fmt or readable(each) for each in (query, key, value)):
        return False
    q, k, v = (shape_of(each) for each in (query, key, value))
    if not {len(q), len(k), len(v)} < {3, 4} or len({len(q), len(k), len(v)}) != 1:
        return False
    if q[:-3] != k[:-3] or k[:-1] != v[:-1] or q[-1] != k[-1] or v[-1] % EACH:
        return False
    heads = q[-3] % k[-3] == 0 if shared and k[-3] else q[-3] == k[-3]
    if not heads or not math.prod(q) or not math.prod(k) or not v[-1]:
        return False
    return _fits(mask, (*q[:-1], k[-2])) and writable(y, (*q[:-1], v[-1]))


def _fits(mask: Tensor | None, scores: Shape) -> bool:
    """Whether it broadcasts to these scores [..., rows, keys]."""
    if mask is None:
        return True
    if mask.dtype not in MASKS or not mask.is_cpu or mask.ndim > len(scores):
        return False
    last = scores[len(scores) - mask.ndim :]
    return all(n in (1, size) for n, size in zip(traced(mask.shape), last, strict=True))


@kernel("fused_sdpa", backend="cpu", supports=supports)
def sdpa(
    query: Value, key: Value, value: Value, mask: Tensor | None, causal: bool, scale: float | None,
    enable_gqa: bool, dtype: torch.dtype, y: Quantizer,
) -> list[Tensor]:  # fmt: skip
    """As ops.fused.products.sdpa."""
    del enable_gqa, dtype
    q, k, v = (_floats(each) for each in (query, key, value))
    batch, heads, rows, depth = q.shape
    keys, width = v.shape[-2:]
    strides = [each.stride()[:3] for each in (q, k, v)]
    offsets = added_scores(mask, (batch, heads, rows, keys))
    strides.append((0, 0, 0, 0) if offsets is None else offsets.stride())
    result = FusedResult(y, (*shape_of(query)[:-1], width))
    _native.attention(
        (*(each.data_ptr() for each in (q, k, v)), 0 if offsets is None else offsets.data_ptr()),
        strides, (batch, heads, heads // k.shape[1], rows, keys, depth, width), causal,
        1 / math.sqrt(depth) if scale is None else scale,
        result.floats, result.codes, result.has_scale, threads(),
    )  # fmt: skip
    return result.tensors


def _floats(value: Value) -> Tensor:
    """[batch, heads, rows, columns] with columns side by side; without a batch, of 1."""
    x: Tensor = dequantize(value.operand, torch.float32) if value.fmt else value.data
    x = x if x.ndim == 4 else x[None]
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


# Attention of few queries over a cache in codes.


def _over_codes(formats: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    _, keys, values, _, _, mask, *_ = arguments
    return (
        known(formats, arguments)
        and few_queries(arguments)
        and all(_within_rows(each) for each in (keys, values))
        and (mask is None or mask.is_cpu)
    )


def _within_rows(codes: Operand) -> bool:
    """Whether each block lies within the last dimension: a token's, or of a channel's tokens."""
    block, rank = codes.format.block, len(codes.shape)
    return not (block.flat or block.strided) and set(block.sizes_for(rank)[:-1]) == {1}


@kernel("cached_attention", backend="cpu", supports=_over_codes)
def cached_attention(
    query: Tensor, keys: Operand, values: Operand, recent_keys: Tensor, recent_values: Tensor,
    mask: Tensor | None, scaling: float, sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """As ops.attention.cached_attention."""
    batch, heads, new, depth = query.shape
    _, shared, tokens, _ = tokens_of(keys)
    chunk = keys.size if len(keys.shape) == 5 else 0
    recent, width, rows = recent_keys.shape[2], values.size, new * (heads // shared)
    forms, codes, parts = [], [], []
    for each in (keys, values):
        n = native(each.fmt)
        table = (math.prod(each.shape[:-1]), each.size)
        zero_point, outer = (
            None if part is None else _as_table(part) for part in (each.zero_point, each.outer)
        )
        more = None if each.more is None else [_as_table(part) for part in each.more]
        forms.append(n.handle)
        codes.append(n.checked_codes(_as_table(each.codes), table))
        parts.append(n.checked_parts(table, _as_table(each.scale), zero_point, outer, more=more))
    floats = [in_order(x.to(torch.float32)) for x in (query, recent_keys, recent_values)]
    offsets = added_scores(mask, (batch, heads, new, tokens + recent))
    if offsets is not None:  # a head of keys has the rows of each of its query's heads in turn
        offsets = offsets.reshape(batch, shared, rows, tokens + recent)
    of_heads = None if sinks is None else in_order(sinks.to(torch.float32))
    y = torch.empty((batch, heads, new, width))
    _native.cached_attention(
        *forms, [each.data_ptr() for each in codes], *(addresses(each) for each in parts),
        [*(each.data_ptr() for each in floats), *(_address(each) for each in (offsets, of_heads))],
        [0] * 4 if offsets is None else offsets.stride(),
        [batch, shared, rows, new, tokens, recent, depth, width, chunk], scaling, y.data_ptr(),
        threads(),
    )  # fmt: skip
    return y.to(query.dtype)


def _as_table(part: Tensor) -> Tensor:
    """[.., columns] -> [rows, columns]; what all share stays one row."""
    return part.reshape(-1, part.shape[-1])
