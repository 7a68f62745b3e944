# SPDX-License-Identifier: BSD-3-Clause
"""Rows by their numbers, and tensors one after the other: of any dtype."""

from typing import Any

import torch
from torch import Tensor

from blockscale.kernels.webgpu.gpu.launch import launch
from blockscale.kernels.webgpu.gpu.shader import Shader
from blockscale.kernels.webgpu.torch_device.handlers import handles
from blockscale.kernels.webgpu.torch_device.tensor import WebGPUTensor
from blockscale.kernels.webgpu.torch_ops.copies import (
    cast,
    fresh,
    read,
    scattered,
    sent,
    whole,
    words,
)

_INDICES = {torch.int64: 2, torch.int32: 1}  # words of each


@handles("embedding.default")
def embedding(
    weight: WebGPUTensor,
    indices: WebGPUTensor,
    padding: int = -1,
    scale_by_frequency: bool = False,
    sparse: bool = False,
) -> Any:
    """weight [n, k], indices [...] -> rows [..., k]."""
    del padding, scale_by_frequency, sparse  # they are for gradients
    return _rows(weight, indices, (*indices.shape, *weight.shape[1:]))


@handles("index_select.default")
def index_select(x: WebGPUTensor, dim: int, indices: WebGPUTensor) -> Any:
    """What lies at indices [i] along a dimension."""
    if x.ndim == 0:
        return NotImplemented
    moved: Any = x.movedim(dim, 0)
    made = _rows(moved, indices, (indices.numel(), *moved.shape[1:]))
    return made if made is NotImplemented else made.movedim(0, dim)


@handles("index.Tensor")
def index(x: WebGPUTensor, indices: Any) -> Any:
    """x[i, j] of tensors of numbers for the first dimensions, or for one of them."""
    first = next((d for d, each in enumerate(indices) if each is not None), 0)
    given = indices[first:]
    if not given or not all(each is not None and each.dtype in _INDICES for each in given):
        return NotImplemented
    sizes = x.shape[first : first + len(given)]
    there = [read(i) if isinstance(i, WebGPUTensor) else i for i in given]
    number = torch.zeros((), dtype=torch.int64)
    for each, size in zip(there, sizes, strict=True):
        at = each.to(torch.int64)
        _check(at, size, least=-size)
        number = number * size + torch.where(at < 0, at + size, at)
    moved: Any = x.flatten(first, first + len(given) - 1).movedim(first, 0)
    made = _rows(moved, sent(number), (*number.shape, *moved.shape[1:]))
    return made.movedim(tuple(range(number.ndim)), tuple(range(first, first + number.ndim)))


def _rows(table: WebGPUTensor, indices: Tensor, shape: tuple[int, ...]) -> Any:
    if not isinstance(indices, WebGPUTensor) or indices.dtype not in _INDICES:
        return NotImplemented
    _check(read(indices), table.shape[0])
    table, indices = whole(table), whole(indices)
    made = fresh(shape, table.dtype)
    constants = (
        ("ITEM_BITS", table.dtype.itemsize * 8),
        ("INDEX_WORDS", _INDICES[indices.dtype]),
    )
    shader = Shader("kernels/torch_choose_rows", constants)
    buffers = {"table": table.memory, "indices": indices.memory, "result": made.memory}
    sizes = {"count": made.numel(), "row": table.numel() // max(table.shape[0], 1)}
    launch(shader, buffers, sizes, words(made), baked=False)
    return made


def _check(indices: Tensor, count: int, least: int = 0) -> None:
    """On the CPU: kernels have no way to say that one is wrong."""
    if indices.numel() and not least <= int(indices.min()) <= int(indices.max()) < count:
        raise IndexError(
            f"indices from {int(indices.min())} to {int(indices.max())} are out of range for "
            f"{count} rows"
        )


@handles("cat.default")
def cat(tensors: Any, dim: int = 0) -> Any:
    """Tensors one after the other along a dimension."""
    parts = [x for x in tensors if tuple(x.shape) != (0,)]  # torch lets these go with any others
    if not parts or not all(isinstance(x, WebGPUTensor) for x in parts):
        return NotImplemented
    dtype = parts[0].dtype
    for x in tensors:
        dtype = torch.promote_types(dtype, x.dtype)
    dim %= parts[0].ndim
    shape = list(parts[0].shape)
    for x in parts:
        if [*x.shape[:dim], *x.shape[dim + 1 :]] != [*shape[:dim], *shape[dim + 1 :]]:
            raise RuntimeError(
                f"cat along {dim}: {tuple(x.shape)} does not match {tuple(parts[0].shape)}"
            )
    shape[dim] = sum(x.shape[dim] for x in parts)
    made, start = fresh(tuple(shape), dtype), 0
    for x in parts:
        part: Any = made.narrow(dim, start, x.shape[dim])
        scattered(part, cast(x, dtype))
        start += x.shape[dim]
    return made


@handles("stack.default")
def stack(tensors: Any, dim: int = 0) -> Any:
    """Tensors one after the other along a new dimension."""
    return cat([x.unsqueeze(dim) for x in tensors], dim % (tensors[0].ndim + 1))
