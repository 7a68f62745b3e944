# SPDX-License-Identifier: BSD-3-Clause
"""Rows of a table that are asked for by number."""

import torch
from torch import Tensor

from blockscale.kernels.webgpu.gpu.launch import Window, launch
from blockscale.kernels.webgpu.gpu.memory import Memory, allocate
from blockscale.kernels.webgpu.matmul.factors import Right, window
from blockscale.kernels.webgpu.matmul.product import cast, most
from blockscale.kernels.webgpu.matmul.shaders import rows_shader
from blockscale.kernels.webgpu.primitives.form import memory_of


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
