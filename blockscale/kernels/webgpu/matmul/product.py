# SPDX-License-Identifier: BSD-3-Clause
"""A product of two factors, in as many launches as what kernels can see at once asks for."""

from collections.abc import Iterator
from math import gcd
from typing import NamedTuple

import torch

from blockscale.kernels.webgpu.gpu.device import gpu
from blockscale.kernels.webgpu.gpu.launch import Window, launch
from blockscale.kernels.webgpu.gpu.memory import Memory, allocate
from blockscale.kernels.webgpu.matmul.factors import Left, Right, window
from blockscale.kernels.webgpu.matmul.plan import plan
from blockscale.kernels.webgpu.matmul.shaders import cast_shader, product_shader

_WINDOW = 256  # bytes: windows begin at multiples


class Bias(NamedTuple):
    """Numbers [outputs] that are added to the products."""

    memory: Memory
    dtype: torch.dtype


class _Piece(NamedTuple):
    """Rows of the left factor and outputs of the right one that one launch multiplies."""

    row: int
    rows: int
    output: int
    outputs: int


def product(left: Left, right: Right, bias: Bias | None, dtype: torch.dtype) -> Memory:
    """left [batches, rows, k] times right [outputs, k], plus the bias -> [batches, rows, outputs].

    No size but k may be 0. Sums are of float32, and rounded to `dtype` once.
    """
    # two halves share a word: an odd number of outputs goes through float32
    whole = dtype == torch.float32 or right.outputs % 2 == 0
    kind = dtype if whole else torch.float32
    count = left.batches * left.rows * right.outputs
    result = allocate(count * kind.itemsize)
    for piece in _pieces(left, right, kind):
        _launch(left, right, bias, result, kind, piece)
    return result if whole else cast(result, count, dtype)


def _launch(
    left: Left, right: Right, bias: Bias | None, result: Memory, kind: torch.dtype, piece: _Piece
) -> None:
    p = plan(left.batches, piece.rows, piece.outputs, left.inner, right.chunk, right.chunk_quads)
    added = None if bias is None else bias.dtype
    shader = product_shader(p, right.roles, right.constants, left.dtype, added, kind)
    wide = right.outputs * kind.itemsize
    buffers = right.bound(piece.output, piece.outputs) | {
        "x": _part(left, piece),
        "y": window(result, piece.row * wide, left.batches * piece.rows * wide),
    }
    if p.kernel == "few_rows" and right.chunk == "words":
        buffers["words"] = buffers["codes"]
    if bias is not None:
        buffers["bias"] = bias.memory
    launch(shader, buffers, _sizes(left, right, piece) | p.sizes, p.groups, baked=False)


def _sizes(left: Left, right: Right, piece: _Piece) -> dict[str, int]:
    return {
        "rows": piece.rows,
        "outputs": piece.outputs,
        "inner": left.inner,
        "columns": right.outputs,
        "first": piece.output,
        "least": right.limits.least(left.inner),
        **left.sizes,
        **right.sizes,
    }


def _pieces(left: Left, right: Right, kind: torch.dtype) -> Iterator[_Piece]:
    """What no launch can see at once goes in several."""
    outputs = most(right.outputs, right.row_bytes)
    in_order = left.batches == 1 and left.places is None
    both = (left.inner * left.dtype.itemsize, right.outputs * kind.itemsize)
    rows = most(left.rows, *both) if in_order else left.rows
    for m in range(0, left.rows, rows):
        for n in range(0, right.outputs, outputs):
            yield _Piece(m, min(rows, left.rows - m), n, min(outputs, right.outputs - n))


def most(rows: int, *row_bytes: int) -> int:
    """How many of so many rows a kernel sees at once, where the next ones begin at a window.

    row_bytes: those of a row, of each tensor that is seen in part
    """
    limit, largest = gpu().binding_limit, max(row_bytes)
    if rows * largest <= limit:
        return rows
    step = _WINDOW // gcd(_WINDOW, *row_bytes)
    return max(limit // largest // step, 1) * step


def _part(left: Left, piece: _Piece) -> Window:
    if piece.rows == left.rows:
        return window(left.memory, 0, left.memory.nbytes)
    row = left.inner * left.dtype.itemsize
    return window(left.memory, piece.row * row, piece.rows * row)


def cast(values: Memory, count: int, dtype: torch.dtype) -> Memory:
    """float32 [count] -> the same rounded to dtype, of 16 bits."""
    result = allocate(count * dtype.itemsize)
    words = -(-count // 2)
    launch(
        cast_shader(dtype),
        {"source": values, "result": result},
        {"count": count},
        -(-words // 256),
    )
    return result
