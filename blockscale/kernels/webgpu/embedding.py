# SPDX-License-Identifier: BSD-3-Clause
"""Rows of a quantized table: only those that are asked for are dequantized."""

import torch
from torch import Tensor

from blockscale.core.operand import Operand
from blockscale.core.reference import FLOATS
from blockscale.kernels.registry import kernel
from blockscale.kernels.webgpu.gpu.launch import Window, launch
from blockscale.kernels.webgpu.gpu.memory import Memory, allocate, download
from blockscale.kernels.webgpu.matmul.factors import Right, window
from blockscale.kernels.webgpu.matmul.product import cast, most
from blockscale.kernels.webgpu.matmul.shaders import rows_shader
from blockscale.kernels.webgpu.matmul.weight import right_of
from blockscale.kernels.webgpu.primitives.form import back, memory_of, moved
from blockscale.kernels.webgpu.spec import known
from blockscale.kernels.webgpu.torch_device.tensor import WebGPUTensor


@kernel("embedding", backend="webgpu", supports=known)
def embedding(weight: Operand, indices: Tensor, dtype: torch.dtype) -> Tensor:
    """As ops.embedding.embedding."""
    table, size = right_of(weight), weight.size
    shape = (*indices.shape, size)
    _check(indices, weight.codes.shape[0])
    if not indices.numel() or not size:
        return moved(torch.empty(shape, dtype=dtype), weight.codes)
    kind = dtype if dtype in FLOATS else torch.float32
    found = back(rows(table, size, indices, kind), shape, kind, weight.codes)
    return found if kind == dtype else found.to(dtype)


def _check(indices: Tensor, count: int) -> None:
    """Raises IndexError for rows that do not exist, TypeError for what is no number of a row."""
    if indices.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"indices must be int32 or int64, found {indices.dtype}")
    if not indices.numel():
        return
    if isinstance(indices, WebGPUTensor):  # a kernel could only be silent about it
        indices = download(memory_of(indices), tuple(indices.shape), indices.dtype)
    low, high = indices.min().item(), indices.max().item()
    if low < 0 or high >= count:
        raise IndexError(f"a table of {count} rows has none of {low if low < 0 else high}")


def rows(table: Right, columns: int, indices: Tensor, dtype: torch.dtype) -> Memory:
    """Rows [count, columns] of a table; indices are int32 or int64 [count], and right."""
    whole = dtype == torch.float32 or columns % 2 == 0
    kind = dtype if whole else torch.float32
    count, wide = indices.numel(), columns * kind.itemsize
    result, asked = allocate(count * wide), memory_of(indices)
    shader = rows_shader(table.roles, table.constants, indices.dtype, kind)
    each = most(count, wide)
    seen = most(table.outputs, table.row_bytes)
    for first in range(0, count, each):
        number = min(each, count - first) * columns
        part: dict[str, Memory | Window] = {
            "indices": asked,
            "y": window(result, first * wide, number * kind.itemsize),
        }
        for row in range(0, table.outputs, seen):
            sizes = {
                "columns": columns, "inner": columns, "count": number, "first_index": first,
                "first": row, "outputs": min(seen, table.outputs - row), **table.sizes,
            }  # fmt: skip
            here = table.bound(row, sizes["outputs"]) | part
            launch(shader, here, sizes, -(-number // 512), baked=False)
    return result if whole else cast(result, count * columns, dtype)
