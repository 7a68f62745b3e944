# SPDX-License-Identifier: BSD-3-Clause
"""Norms of rows, and of residual sums: read once, normalized and quantized while they are in L1."""

import math
from typing import Any

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.operand import Quantizer, Value
from blockscale.kernels.cpu import _native
from blockscale.kernels.cpu.fused.rows import Result, readable, rows_of, shape_of, writable
from blockscale.kernels.cpu.native import threads
from blockscale.kernels.operand import in_order, new
from blockscale.kernels.registry import kernel

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
    shape, held = shape_of(a), list[Tensor]()
    operands = rows_of(a, held), None if b is None else rows_of(b, held)
    scaled = [None if v is None else in_order(v) for v in vectors]
    sums = new(shape, torch.float32) if keep == "sum" else None
    values = new(shape, torch.float32) if keep == "norm" else None
    result = Result(y, shape, values=values)
    size = math.prod(shape)
    _native.norm(
        *how, *(_address(v) for v in scaled), *operands, size // shape[-1], shape[-1],
        _address(sums), result.floats, result.codes, result.given, threads(),
    )  # fmt: skip
    tensors = result.tensors
    if values is not None and not y.fmt:
        tensors = [values.clone()]  # an op's results share no memory
    return [part for part in (sums, values) if part is not None] + tensors


def _address(of: Vector) -> int:
    return 0 if of is None else of.data_ptr()
