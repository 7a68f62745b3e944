# SPDX-License-Identifier: BSD-3-Clause
"""Reductions: dimensions of floats become one number, in float32 until the end."""

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from blockscale.kernels.webgpu.gpu.launch import launch
from blockscale.kernels.webgpu.gpu.shader import Kernel, Shader
from blockscale.kernels.webgpu.torch_device.handlers import handles
from blockscale.kernels.webgpu.torch_device.tensor import WebGPUTensor
from blockscale.kernels.webgpu.torch_ops.addresses import addresses
from blockscale.kernels.webgpu.torch_ops.copies import FLOATS, cast, fresh, narrowed
from blockscale.kernels.webgpu.torch_ops.elementwise import binary, bits, unary

_STARTS = {"join_sums": 0.0, "maximum": -float("inf"), "minimum": float("inf")}
_SPAN = 1 << 13  # elements that one workgroup takes


@dataclass(frozen=True)
class Reduce(Kernel, part="kernels/torch_reduce"):
    """Numbers joined, two at a time, by torch_functions/binary/{joining}."""

    joining: str
    float: str
    address: str


def reduced(part: str, x: WebGPUTensor, dims: Any, keep: bool) -> WebGPUTensor:
    """Numbers joined over dimensions by a part of two numbers, in float32."""
    ranks = range(x.ndim)
    chosen = sorted({d % x.ndim for d in dims}) if dims and x.ndim else list(ranks)
    kept = [d for d in ranks if d not in chosen]
    ordered: Any = x.permute(*kept, *chosen) if x.ndim else x
    shape = tuple(1 if d in chosen else size for d, size in enumerate(x.shape))
    count, columns = prod(x.shape[d] for d in kept), prod(x.shape[d] for d in chosen)
    parts = max(-(-columns // _SPAN), 1)
    made = _joined(part, ordered, count, columns, parts)
    while parts > 1:
        columns, parts = parts, max(-(-parts // _SPAN), 1)
        made = _joined(part, made, count, columns, parts)
    final = shape if keep else tuple(x.shape[d] for d in kept)
    return WebGPUTensor(made.memory, final, torch.float32)


def _joined(part: str, x: WebGPUTensor, rows: int, columns: int, parts: int) -> WebGPUTensor:
    """[rows, columns] in row-major order, of any view -> [rows, parts]."""
    made = fresh((rows, parts), torch.float32)
    at = addresses(tuple(x.shape), [x])
    kernel = Reduce(part, FLOATS[x.dtype], at.address)
    shader = Shader(kernel, (("START", bits(_STARTS[part])), *at.constants))
    span = -(-columns // parts)
    sizes = {"rows": rows, "columns": columns, "parts": parts, "span": span}
    buffers = {"x": x.memory, "result": made.memory, **at.buffers}
    launch(shader, buffers, sizes, rows * parts, baked=False)
    return made


@handles("sum.dim_IntList", "sum.default")
def sum_of(x: WebGPUTensor, dims: Any = None, keep: bool = False, *, dtype: Any = None) -> Any:
    """Sums over dimensions, or over all."""
    if x.dtype not in FLOATS or (dtype or x.dtype) not in FLOATS:
        return NotImplemented
    return narrowed(reduced("join_sums", x, dims, keep), dtype or x.dtype)


@handles("mean.dim", "mean.default")
def mean(x: WebGPUTensor, dims: Any = None, keep: bool = False, *, dtype: Any = None) -> Any:
    """Means over dimensions, or over all."""
    if x.dtype not in FLOATS or (dtype or x.dtype) not in FLOATS:
        return NotImplemented
    total = reduced("join_sums", x, dims, keep)
    count = x.numel() / max(total.numel(), 1)
    return narrowed(binary("div", total, count), dtype or x.dtype)


def _register_extreme(part: str, *names: str) -> None:
    def compute(x: WebGPUTensor, dims: Any = (), keep: bool = False) -> Any:
        if x.dtype not in FLOATS or not x.numel():  # of nothing there is none: torch says so
            return NotImplemented
        return narrowed(reduced(part, x, dims, keep), x.dtype)

    handles(*names)(compute)


_register_extreme("maximum", "amax.default", "max.default")
_register_extreme("minimum", "amin.default", "min.default")


@handles("linalg_vector_norm.default")
def vector_norm(
    x: WebGPUTensor, order: float = 2, dims: Any = None, keep: bool = False, *, dtype: Any = None
) -> Any:
    """The root of the sum of squares."""
    if order != 2 or x.dtype not in FLOATS or (dtype or x.dtype) not in FLOATS:
        return NotImplemented
    wide = cast(x, torch.float32)
    squares: Tensor = binary("mul", wide, wide)
    assert isinstance(squares, WebGPUTensor)
    return narrowed(unary("sqrt", reduced("join_sums", squares, dims, keep)), dtype or x.dtype)


@handles("all.default", "all.dim", "all.dims")
def every(x: WebGPUTensor, dims: Any = None, keep: bool = False) -> Any:
    """Whether all of some booleans are true."""
    if x.dtype is not torch.bool:
        return NotImplemented
    least = reduced("minimum", cast(x, torch.float32), _as_list(dims), keep)
    return binary("unequal", least, 0.0, compare=True)  # of nothing it is infinite


@handles("any.default", "any.dim", "any.dims")
def some(x: WebGPUTensor, dims: Any = None, keep: bool = False) -> Any:
    """Whether one of some booleans is true."""
    if x.dtype is not torch.bool:
        return NotImplemented
    most = reduced("maximum", cast(x, torch.float32), _as_list(dims), keep)
    return binary("equal", most, 1.0, compare=True)


def _as_list(dims: Any) -> Any:
    return [dims] if isinstance(dims, int) else dims
