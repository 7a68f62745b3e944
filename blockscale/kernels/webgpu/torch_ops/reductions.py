# SPDX-License-Identifier: BSD-3-Clause
"""Reductions, norms and products."""

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from blockscale.kernels.webgpu import matmul as matmul
from blockscale.kernels.webgpu.gpu.launch import launch
from blockscale.kernels.webgpu.gpu.memory import Memory
from blockscale.kernels.webgpu.gpu.shader import Shader, ShaderKernel
from blockscale.kernels.webgpu.matmul import LeftOperand, MatrixPlaces, floats
from blockscale.kernels.webgpu.torch_device import WebGPUTensor, handles
from blockscale.kernels.webgpu.torch_ops.copies import (
    FLOATS,
    addresses,
    cast,
    fresh,
    narrow,
    send,
    whole,
)
from blockscale.kernels.webgpu.torch_ops.elementwise import binary, bits, unary

# Reductions: dimensions of floats become one number, in float32 until the end.

_STARTS = {"join_sums": 0.0, "maximum": -float("inf"), "minimum": float("inf")}
_SPAN = 1 << 13  # elements that one workgroup takes


@dataclass(frozen=True)
class Reduce(ShaderKernel, part="kernels/torch_reductions/reduce"):
    """Numbers joined, two at a time, by torch_functions/binary/{joining}."""

    joining: str
    float: str
    address: str


def reduced(part: str, x: WebGPUTensor, dims: Any, keep: bool) -> WebGPUTensor:
    """Numbers joined over dimensions by a part of two numbers, in float32."""
    ranks = range(x.ndim)
    choice = sorted({d % x.ndim for d in dims}) if dims and x.ndim else list(ranks)
    rest = [d for d in ranks if d not in choice]
    in_order: Any = x.permute(*rest, *choice) if x.ndim else x
    shape = tuple(1 if d in choice else size for d, size in enumerate(x.shape))
    count, columns = prod(x.shape[d] for d in rest), prod(x.shape[d] for d in choice)
    parts = max(-(-columns // _SPAN), 1)
    result = _reduce_parts(part, in_order, count, columns, parts)
    while parts > 1:
        columns, parts = parts, max(-(-parts // _SPAN), 1)
        result = _reduce_parts(part, result, count, columns, parts)
    final = shape if keep else tuple(x.shape[d] for d in rest)
    return WebGPUTensor(result.memory, final, torch.float32)


def _reduce_parts(part: str, x: WebGPUTensor, rows: int, columns: int, parts: int) -> WebGPUTensor:
    """[rows, columns] in row-major order, of any view -> [rows, parts]."""
    result = fresh((rows, parts), torch.float32)
    at = addresses(tuple(x.shape), [x])
    kernel = Reduce(part, FLOATS[x.dtype], at.address)
    shader = Shader(kernel, (("START", bits(_STARTS[part])), *at.constants))
    span = -(-columns // parts)
    sizes = {"rows": rows, "columns": columns, "parts": parts, "span": span}
    buffers = {"x": x.memory, "result": result.memory, **at.buffers}
    launch(shader, buffers, sizes, rows * parts, bake=False)
    return result


@handles("sum.dim_IntList", "sum.default")
def sum_of(x: WebGPUTensor, dims: Any = None, keep: bool = False, *, dtype: Any = None) -> Any:
    """Sums over dimensions, or over all."""
    if x.dtype not in FLOATS or (dtype or x.dtype) not in FLOATS:
        return NotImplemented
    return narrow(reduced("join_sums", x, dims, keep), dtype or x.dtype)


@handles("mean.dim", "mean.default")
def mean(x: WebGPUTensor, dims: Any = None, keep: bool = False, *, dtype: Any = None) -> Any:
    """Means over dimensions, or over all."""
    if x.dtype not in FLOATS or (dtype or x.dtype) not in FLOATS:
        return NotImplemented
    total = reduced("join_sums", x, dims, keep)
    count = x.numel() / max(total.numel(), 1)
    return narrow(binary("div", total, count), dtype or x.dtype)


def _register_extreme(part: str, *names: str) -> None:
    def compute(x: WebGPUTensor, dims: Any = (), keep: bool = False) -> Any:
        if x.dtype not in FLOATS or not x.numel():  # of nothing there is none: torch says so
            return NotImplemented
        return narrow(reduced(part, x, dims, keep), x.dtype)

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
    return narrow(unary("sqrt", reduced("join_sums", squares, dims, keep)), dtype or x.dtype)


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


# What normalizes rows: softmax and its logarithm, layer_norm.


@dataclass(frozen=True)
class Softmax(ShaderKernel, part="kernels/torch_reductions/softmax"):
    """softmax of rows. float: memory/float/{float}"""

    float: str
    address: str


@dataclass(frozen=True)
class LayerNorm(Softmax, part="kernels/torch_reductions/layer_norm"):
    """layer_norm of rows."""


def _softmax(x: WebGPUTensor, dim: int, dtype: torch.dtype, **flags: bool) -> Any:
    """Along any dimension, which is moved to the end for the kernel."""
    if x.dtype not in FLOATS or dtype not in FLOATS:
        return NotImplemented
    if x.ndim == 0:
        return _softmax(x.reshape(1), 0, dtype, **flags).reshape(())  # type: ignore[arg-type]
    last: Any = x.movedim(dim, -1)
    result = fresh(tuple(last.shape), torch.float32)
    columns = last.shape[-1]
    at = addresses(tuple(last.shape), [last])
    constants = (("LOGARITHM", flags.get("log", False)), ("SAFE", flags.get("safe", False)))
    shader = Shader(Softmax(FLOATS[x.dtype], at.address), (*constants, *at.constants))
    rows = result.numel() // max(columns, 1)
    buffers = {"x": x.memory, "result": result.memory, **at.buffers}
    launch(shader, buffers, {"rows": rows, "columns": columns}, rows, bake=False)
    return narrow(result, dtype).movedim(-1, dim)


@handles("_softmax.default")
def softmax(x: WebGPUTensor, dim: int, half_to_float: bool) -> Any:
    """exp(x) over the sum of such along a dimension."""
    return _softmax(x, dim, torch.float32 if half_to_float else x.dtype)


@handles("_log_softmax.default")
def log_softmax(x: WebGPUTensor, dim: int, half_to_float: bool) -> Any:
    """The logarithm of softmax."""
    return _softmax(x, dim, torch.float32 if half_to_float else x.dtype, log=True)


@handles("_safe_softmax.default")
def safe_softmax(x: WebGPUTensor, dim: int, dtype: Any = None) -> Any:
    """softmax, but 0 where all is -inf."""
    return _softmax(x, dim, dtype or x.dtype, safe=True)


@handles("native_layer_norm.default")
def layer_norm(
    x: WebGPUTensor, shape: Any, weight: Any, bias: Any, epsilon: float
) -> tuple[Tensor, Tensor, Tensor] | Any:
    """Rows less their mean over their deviation; with the means and what was multiplied by."""
    if x.dtype not in FLOATS:
        return NotImplemented
    columns = prod(shape)
    if tuple(x.shape[x.ndim - len(shape) :]) != tuple(shape):
        raise RuntimeError(
            f"layer_norm over {list(shape)} does not match a tensor {tuple(x.shape)}"
        )
    rows = x.numel() // max(columns, 1)
    result = fresh(tuple(x.shape), torch.float32)
    outer = (*x.shape[: x.ndim - len(shape)], *[1] * len(shape))
    means, inverses = fresh(outer, torch.float32), fresh(outer, torch.float32)
    at = addresses(tuple(x.shape), [x])
    shader = Shader(LayerNorm(FLOATS[x.dtype], at.address), at.constants)
    buffers = {
        "x": x.memory, "weight": _factors(weight, columns, 1.0).memory,
        "bias": _factors(bias, columns, 0.0).memory, "result": result.memory,
        "means": means.memory, "inverses": inverses.memory, **at.buffers,
    }  # fmt: skip
    sizes = {"rows": rows, "columns": columns, "epsilon": bits(epsilon)}
    launch(shader, buffers, sizes, rows, bake=False)
    return narrow(result, x.dtype), means, inverses


def _factors(value: Any, columns: int, otherwise: float) -> WebGPUTensor:
    """A weight or bias in float32; the same number for all columns where there is none."""
    if value is None:
        return send(torch.full((columns,), otherwise))
    return whole(cast(value, torch.float32))


# Products of matrices of floats, of any strides: sums are float32's.


def product(a: Any, b: Any, dtype: torch.dtype) -> Any:
    """[batches, m, k] x [batches, k, n] -> [batches, m, n] of dtype."""
    (batches, m, k), n = a.shape, b.shape[2]
    if b.shape[:2] != (batches, k):
        raise RuntimeError(
            f"matrices of {tuple(a.shape)} and {tuple(b.shape)} cannot be multiplied"
        )
    if 0 in (batches, m, k, n):
        return fresh((batches, m, n), dtype).zero_()
    return WebGPUTensor(dense(a, b, dtype), (batches, m, n), dtype)


def _is_unsupported(*matrices: WebGPUTensor) -> bool:
    return any(x.dtype not in FLOATS or x.dtype != matrices[0].dtype for x in matrices)


@handles("bmm.default")
def bmm(a: WebGPUTensor, b: WebGPUTensor) -> Any:
    """A product for each of a batch."""
    return NotImplemented if _is_unsupported(a, b) else product(a, b, a.dtype)


@handles("mm.default")
def mm(a: WebGPUTensor, b: WebGPUTensor) -> Any:
    """One product."""
    if _is_unsupported(a, b):
        return NotImplemented
    return product(a.unsqueeze(0), b.unsqueeze(0), a.dtype).squeeze(0)


@handles("addmm.default")
def addmm(c: Any, a: WebGPUTensor, b: WebGPUTensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """beta c + alpha a b."""
    if _is_unsupported(a, b):
        return NotImplemented
    result = product(a.unsqueeze(0), b.unsqueeze(0), torch.float32).squeeze(0)
    return _add_scaled(c, result, a.dtype, beta, alpha)


@handles("baddbmm.default")
def baddbmm(c: Any, a: WebGPUTensor, b: WebGPUTensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """beta c + alpha a b for each of a batch."""
    return (
        NotImplemented
        if _is_unsupported(a, b)
        else _add_scaled(c, product(a, b, torch.float32), a.dtype, beta, alpha)
    )


def _add_scaled(c: Any, value: Any, dtype: torch.dtype, beta: float, alpha: float) -> Any:
    """In float32, until it is rounded once."""
    if alpha != 1:
        value = binary("mul", value, alpha)
    if beta != 0:
        value = binary("add", value, c if beta == 1 else binary("mul", c, beta))
    return narrow(value, dtype)


@handles("_fused_sdp_choice.default")
def attention(*_: Any, **__: Any) -> int:
    """Attention is made of products and softmax (torch's SDPBackend.MATH)."""
    return 0


def dense(a: WebGPUTensor, b: WebGPUTensor, dtype: torch.dtype) -> Memory:
    """[batches, m, k] x [batches, k, n] -> [batches, m, n] of dtype; views of any strides.

    Sums are of float32 and rounded once. No size but k is 0; a and b are float32, bfloat16 or
    float16 each.
    """
    (batches, m, k), n = a.shape, b.shape[2]
    batch, column, row = b.stride()
    right = floats(b.memory, b.dtype, n, MatrixPlaces(int(b.storage_offset()), batch, row, column))
    left = LeftOperand(
        a.memory, a.dtype, m, k, batches, MatrixPlaces(int(a.storage_offset()), *a.stride())
    )
    return matmul.product(left, right, None, dtype)
