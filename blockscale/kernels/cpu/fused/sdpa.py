# SPDX-License-Identifier: BSD-3-Clause
"""Attention in float32: codes become floats, and the result codes while it is in the cache."""

import math
from typing import Any

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.operand import Quantizer, Value
from blockscale.kernels.cpu import _native
from blockscale.kernels.cpu.fused.rows import Result, Shape, readable, shape_of, traced, writable
from blockscale.kernels.cpu.native import known, threads
from blockscale.kernels.cpu.quantize import dequantize
from blockscale.kernels.registry import kernel

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
    added = _added(mask, (batch, heads, rows, keys))
    strides.append((0, 0, 0, 0) if added is None else added.stride())
    result = Result(y, (*shape_of(query)[:-1], width))
    _native.attention(
        (*(each.data_ptr() for each in (q, k, v)), 0 if added is None else added.data_ptr()),
        strides, (batch, heads, heads // k.shape[1], rows, keys, depth, width), causal,
        1 / math.sqrt(depth) if scale is None else scale,
        result.floats, result.codes, result.given, threads(),
    )  # fmt: skip
    return result.tensors


def _floats(value: Value) -> Tensor:
    """[batch, heads, rows, columns] with columns side by side; without a batch, of 1."""
    x: Tensor = dequantize(value.operand, torch.float32) if value.fmt else value.data
    x = x if x.ndim == 4 else x[None]
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _added(mask: Tensor | None, scores: Shape) -> Tensor | None:
    """What is added to scores [batch, heads, rows, keys], as a view of that shape."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        unseen = torch.full((), -torch.inf)
        mask = torch.where(mask, torch.zeros(()), unseen)
    return mask.to(torch.float32).expand(scores)
