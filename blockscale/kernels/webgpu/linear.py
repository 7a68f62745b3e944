# SPDX-License-Identifier: BSD-3-Clause
"""The ops with a quantized weight: products, and rows of tables. Formats that the kernels know only
restated.
"""

import torch
from torch import Tensor

from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer
from blockscale.core.reference import FLOATS
from blockscale.kernels.registry import batch_invariant, kernel
from blockscale.kernels.restated_ops import register
from blockscale.kernels.webgpu.gpu.launch import Window, launch
from blockscale.kernels.webgpu.gpu.memory import Memory, allocate, download
from blockscale.kernels.webgpu.matmul import (
    Bias,
    LeftOperand,
    Right,
    cast,
    most,
    product,
    rows_shader,
    window,
)
from blockscale.kernels.webgpu.matmul_weight import right_of
from blockscale.kernels.webgpu.primitives import choose_encode
from blockscale.kernels.webgpu.primitives.encode import codes, decode, seed_memory
from blockscale.kernels.webgpu.primitives.form import (
    back,
    floats,
    form,
    given_parts,
    memory_of,
    move_like,
)
from blockscale.kernels.webgpu.spec import known
from blockscale.kernels.webgpu.torch_device import WebGPUTensor

# x @ weight.T on the GPU: weights are decoded where they are multiplied.


@kernel("linear", backend="webgpu", supports=known)
def linear(
    x: Tensor, weight: Operand, bias: Tensor | None = None, input: Quantizer = UNQUANTIZED
) -> Tensor:
    """As ops.linear.linear."""
    n, k = weight.codes.shape[0], x.shape[-1]
    if k != weight.size:
        raise ValueError(f"expected x of shape [..., {weight.size}], found {tuple(x.shape)}")
    right = right_of(weight)
    bias = None if bias is None else bias.expand(n)
    shape = (*x.shape[:-1], n)
    if not x.numel() or not n:
        y = torch.zeros(shape, dtype=x.dtype)
        return move_like(y if bias is None else y.copy_(bias.cpu()), x)
    left = LeftOperand(floats(x), x.dtype, x.numel() // k, k)
    if input.fmt:
        left = left._replace(memory=_quantized(x, left.memory, input), dtype=torch.float32)
    offset = None if bias is None else Bias(memory_of(bias), bias.dtype)
    result = product(left, right, offset, x.dtype, alone=batch_invariant())
    return back(result, shape, x.dtype, x)


def _quantized(x: Tensor, memory: Memory, by: Quantizer) -> Memory:
    """The float32 values that the input format leaves of x, as ops.linear.quantized_input."""
    f, shape = form(by.fmt), tuple(x.shape)
    if by.scale is None:
        f.scale_shape(shape)  # raises if the block does not fit
        packed, parts = choose_encode.codes(f, memory, x.dtype, shape, by.seed)
    else:
        parts = given_parts(f, shape, by.scale, by.zero_point, by.outer, by.more, x)
        packed = codes(f, memory, x.dtype, shape, parts, seed_memory(f, by.seed))
    return decode(f, packed, shape, parts, torch.float32)


# Rows of a quantized table: only those that are asked for are dequantized.


@kernel("embedding", backend="webgpu", supports=known)
def embedding(weight: Operand, indices: Tensor, dtype: torch.dtype) -> Tensor:
    """As ops.embedding.embedding."""
    table, size = right_of(weight), weight.size
    shape = (*indices.shape, size)
    _check(indices, weight.codes.shape[0])
    if not indices.numel() or not size:
        return move_like(torch.empty(shape, dtype=dtype), weight.codes)
    kind = dtype if dtype in FLOATS else torch.float32
    result = back(rows(table, size, indices, kind), shape, kind, weight.codes)
    return result if kind == dtype else result.to(dtype)


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
    result, request = allocate(count * wide), memory_of(indices)
    shader = rows_shader(table.roles, table.constants, indices.dtype, kind)
    each = most(count, wide)
    portion = most(table.outputs, table.row_bytes)
    for first in range(0, count, each):
        number = min(each, count - first) * columns
        part: dict[str, Memory | Window] = {
            "indices": request,
            "y": window(result, first * wide, number * kind.itemsize),
        }
        for row in range(0, table.outputs, portion):
            sizes = {
                "columns": columns, "inner": columns, "count": number, "first_index": first,
                "first": row, "outputs": min(portion, table.outputs - row), **table.sizes,
            }  # fmt: skip
            here = table.bound(row, sizes["outputs"]) | part
            launch(shader, here, sizes, -(-number // 512), bake=False)
    return result if whole else cast(result, count * columns, dtype)


# Formats that the WebGPU kernels know only restated.


def fingerprint(part: Tensor) -> int:
    """A number that changes with a tensor's bytes and their order."""
    data = part.cpu().contiguous().view(torch.uint8).flatten().to(torch.int64)
    place = torch.arange(1, data.numel() + 1)
    return int((data * (2 * place * place + 1)).sum())


OPS = register("webgpu", fingerprint, without=("round_columns",))
