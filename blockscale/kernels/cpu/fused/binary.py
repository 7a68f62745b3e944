# SPDX-License-Identifier: BSD-3-Clause
"""Sums, differences, products and quotients of tensors of one shape, codes or floats."""

import math
from typing import Any

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.operand import Quantizer, Value
from blockscale.kernels.cpu import _native
from blockscale.kernels.cpu.fused.rows import Result, readable, rows_of, shape_of, writable
from blockscale.kernels.cpu.native import threads
from blockscale.kernels.registry import kernel

KINDS = {"add": 0, "sub": 1, "mul": 2, "div": 3}  # `Binary` of src/fused.h


def supports(formats: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
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


def _register(op: str, kind: int) -> None:
    @kernel(f"fused_{op}", backend="cpu", supports=supports)
    def run(a: Value, b: Value, *rest: Any) -> list[Tensor]:
        """As the op of blockscale.ops.fused."""
        y: Quantizer = rest[-1]
        shape, held = shape_of(a), []  # type: ignore[var-annotated]
        result = Result(y, shape)
        columns = shape[-1]
        _native.binary(
            kind, rows_of(a, held), rows_of(b, held), math.prod(shape) // columns, columns,
            result.floats, result.codes, result.given, threads(),
        )  # fmt: skip
        return result.tensors


for _op, _kind in KINDS.items():
    _register(_op, _kind)
