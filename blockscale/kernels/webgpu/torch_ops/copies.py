# SPDX-License-Identifier: BSD-3-Clause
"""Copies, views' addresses and indexing of tensors on the device."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from blockscale.kernels.webgpu.gpu.device import gpu
from blockscale.kernels.webgpu.gpu.launch import launch
from blockscale.kernels.webgpu.gpu.memory import Memory, allocate, download, upload
from blockscale.kernels.webgpu.gpu.shader import Constant, Shader, ShaderKernel
from blockscale.kernels.webgpu.torch_device import NAME, WebGPUTensor, handles, is_whole

# Where a kernel finds the elements of operands that are views, or are broadcast.

Sizes = tuple[int, ...]


class Addresses(NamedTuple):
    """What a kernel of the part `torch/address/{address}` takes.

    address: that part
    constants: for its shader
    buffers: for its launch
    """

    address: str
    constants: tuple[tuple[str, Constant], ...]
    buffers: dict[str, Memory]


_STRAIGHT = Addresses("straight", (), {})


def addresses(shape: Sizes, operands: Sequence[WebGPUTensor], *, always: bool = False) -> Addresses:
    """Of operands that are broadcast to `shape`.

    always: even where they lie as the result does, for kernels that know nothing else
    """
    if not always and all(is_whole(x) and tuple(x.shape) == shape for x in operands):
        return _STRAIGHT
    strides = [broadcast(shape, tuple(x.shape), x.stride()) for x in operands]
    dimensions = merged(shape, strides)
    offsets = tuple(x.storage_offset() for x in operands)
    numbers = (len(dimensions), *offsets, *(n for each in reversed(dimensions) for n in each))
    geometry = _geometry(numbers)
    constants = (("OPERANDS", len(operands)),)
    return Addresses("strided", constants, {"geometry": geometry})


@lru_cache(4096)
def _geometry(numbers: Sizes) -> Memory:
    return upload(torch.tensor(numbers, dtype=torch.int64).to(torch.int32))


def joint(*shapes: Sizes) -> Sizes:
    """The shape of what is computed of tensors of these shapes, as torch.broadcast_shapes.

    That imports sympy, and takes as long as a small op. Raises RuntimeError if they do not fit.
    """
    if all(shape == shapes[0] for shape in shapes):
        return tuple(shapes[0])
    result = [1] * max(map(len, shapes))
    for shape in shapes:
        for d in range(-len(shape), 0):
            if shape[d] != 1 and result[d] not in (1, shape[d]):
                sizes = " and ".join(str(tuple(each)) for each in shapes)
                raise RuntimeError(f"shapes {sizes} cannot be broadcast: sizes must be equal, or 1")
            result[d] = result[d] if shape[d] == 1 else shape[d]
    return tuple(result)


def broadcast(shape: Sizes, own: Sizes, stride: Sizes) -> Sizes:
    """The strides of a tensor that is expanded to `shape`."""
    missing = len(shape) - len(own)
    strides = (0 if size == 1 else step for size, step in zip(own, stride, strict=True))
    return (0,) * missing + tuple(strides)


def merged(shape: Sizes, strides: Sequence[Sizes]) -> list[Sizes]:
    """Dimensions as (size, stride of each operand), as few as say the same."""
    sizes: list[Sizes] = []
    for size, *steps in zip(shape, *strides, strict=True):
        if size == 1:
            continue
        if sizes and sizes[-1][1:] == tuple(step * size for step in steps):
            sizes[-1] = (sizes[-1][0] * size, *steps)
        else:
            sizes.append((size, *steps))
    return sizes


# Copies: views become tensors of their own, tensors are written into views, dtypes change.

FLOATS = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
# what casts to float32 read that is no float: the part that does
_OTHERS = {
    torch.bool: "bytes", torch.uint8: "bytes", torch.int32: "number_of_integer",
    torch.int64: "number_of_integer",
}  # fmt: skip
THREADS = 256  # invocations of a workgroup, one a word


@dataclass(frozen=True)
class Widen(ShaderKernel, part="kernels/torch_copies/widen"):
    """float32 of other numbers. numbers: torch/{numbers}; float: memory/float/{float}"""

    numbers: str
    float: str
    address: str


@dataclass(frozen=True)
class Convert(ShaderKernel, part="kernels/torch_copies/convert"):
    """Narrower floats of float32."""

    float: str


def fresh(shape: Sizes, dtype: torch.dtype) -> WebGPUTensor:
    """A tensor whose numbers nobody has written yet."""
    return WebGPUTensor(allocate(prod(shape) * dtype.itemsize), shape, dtype)


def words(x: WebGPUTensor) -> int:
    """Workgroups for all words of a new tensor."""
    return -(-x.numel() * x.dtype.itemsize // 4 // THREADS)


def send(x: Tensor) -> WebGPUTensor:
    """A tensor on the CPU, on the device."""
    return WebGPUTensor(upload(x), tuple(x.shape), x.dtype)


def read(x: WebGPUTensor) -> Tensor:
    """A tensor on the device, on the CPU, in row-major order."""
    start = int(x.storage_offset()) * x.dtype.itemsize
    if not x.is_contiguous() or start % 4:
        x, start = gather(x), 0
    return download(x.memory, tuple(x.shape), x.dtype, start)


def gather(x: WebGPUTensor) -> WebGPUTensor:
    """A copy in row-major order, in memory of its own."""
    result = fresh(tuple(x.shape), x.dtype)
    _gather(x, result)
    return result


def _gather(x: WebGPUTensor, tensor: WebGPUTensor) -> None:
    """Write x into all of another memory, in row-major order."""
    if is_whole(x):
        with gpu().encoder() as encoder:
            size = -(-tensor.nbytes // 4) * 4
            encoder.copy_buffer_to_buffer(x.memory.buffer, 0, tensor.memory.buffer, 0, size)
        return
    at = addresses(tuple(x.shape), [x], always=True)
    shader = Shader(
        "kernels/torch_copies/gather", (("ITEM_BITS", x.dtype.itemsize * 8), *at.constants)
    )
    buffers = {"x": x.memory, "result": tensor.memory, **at.buffers}
    launch(shader, buffers, {"count": x.numel()}, words(tensor), bake=False)


def whole(x: WebGPUTensor) -> WebGPUTensor:
    """The same numbers in row-major order from the first byte of memory: x itself, or a copy."""
    return x if is_whole(x) else gather(x)


def scatter(into: WebGPUTensor, x: WebGPUTensor) -> None:
    """Write x, which is broadcast, into a tensor or view of the same dtype."""
    if x.memory is into.memory:
        x = gather(x)
    if is_all(into) and x.shape == into.shape:
        _gather(x, into)
        return
    at = addresses(tuple(into.shape), [into, x], always=True)
    shader = Shader(
        "kernels/torch_copies/scatter", (("ITEM_BITS", x.dtype.itemsize * 8), *at.constants)
    )
    buffers = {"x": x.memory, "result": into.memory, **at.buffers}
    count = into.numel()
    groups = -(-count * max(x.dtype.itemsize // 4, 1) // THREADS)
    launch(shader, buffers, {"count": count}, groups, bake=False)


def is_all(x: WebGPUTensor) -> bool:
    """Whether it is all of its memory, not only a part."""
    return is_whole(x) and x.nbytes == x.memory.nbytes


def cast(x: WebGPUTensor, dtype: torch.dtype) -> WebGPUTensor:
    """The numbers in another dtype, as torch converts them; on the CPU where WGSL cannot."""
    if x.dtype == dtype:
        return x
    if dtype in FLOATS and (x.dtype in FLOATS or x.dtype in _OTHERS):
        wide = x if x.dtype == torch.float32 else _widened(x)
        return wide if dtype == torch.float32 else narrow(wide, dtype)
    return send(read(x).to(dtype))


def _widened(x: WebGPUTensor) -> WebGPUTensor:
    result = fresh(tuple(x.shape), torch.float32)
    at = addresses(tuple(x.shape), [x])
    numbers = _OTHERS.get(x.dtype, "first")
    constants = (("ITEM_BITS", x.dtype.itemsize * 8), *at.constants)
    kernel = Widen(numbers, FLOATS.get(x.dtype, "float32"), at.address)
    shader = Shader(kernel, constants)
    buffers = {"x": x.memory, "result": result.memory, **at.buffers}
    launch(shader, buffers, {"count": x.numel()}, words(result), bake=False)
    return result


def narrow(x: WebGPUTensor, dtype: torch.dtype) -> WebGPUTensor:
    """float32 -> a narrower float; x itself if `dtype` is float32."""
    if dtype == torch.float32:
        return x
    x, result = whole(x), fresh(tuple(x.shape), dtype)
    shader = Shader(Convert(FLOATS[dtype]))
    buffers = {"x": x.memory, "result": result.memory}
    launch(shader, buffers, {"count": x.numel()}, words(result), bake=False)
    return result


@handles("clone.default")
def clone(x: WebGPUTensor, *, memory_format: Any = None) -> Tensor:
    """A copy, in row-major order whatever the format asked for: its numbers are the same."""
    del memory_format
    return gather(x)


@handles("_to_copy.default")
def to_copy(
    x: WebGPUTensor,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    **_: Any,
) -> Any:
    """A copy in another dtype, on this or another device."""
    dtype = dtype or x.dtype
    if device is not None and device.type != NAME:
        return read(x).to(dtype).to(device)
    return gather(x) if dtype == x.dtype else cast(x, dtype)


@handles("copy_.default")
def copy_(into: Tensor, x: Tensor, non_blocking: bool = False) -> Tensor:
    """Write one tensor into another one; either may be on the CPU."""
    del non_blocking
    if not isinstance(into, WebGPUTensor):
        assert isinstance(x, WebGPUTensor)
        return into.copy_(read(x))
    source = x if isinstance(x, WebGPUTensor) else send(x.to(into.dtype))
    scatter(into, cast(source, into.dtype))
    return into


@handles("_local_scalar_dense.default")
def number_of(x: WebGPUTensor) -> Any:
    """The one number of a tensor."""
    return read(x).item()


# Rows by their numbers, and tensors one after the other: of any dtype.

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
    table: Any = x.movedim(dim, 0)
    result = _rows(table, indices, (indices.numel(), *table.shape[1:]))
    return result if result is NotImplemented else result.movedim(0, dim)


@handles("index.Tensor")
def index(x: WebGPUTensor, indices: Any) -> Any:
    """x[i, j] of tensors of numbers for the first dimensions, or for one of them."""
    first = next((d for d, each in enumerate(indices) if each is not None), 0)
    others = indices[first:]
    if not others or not all(each is not None and each.dtype in _INDICES for each in others):
        return NotImplemented
    sizes = x.shape[first : first + len(others)]
    there = [read(i) if isinstance(i, WebGPUTensor) else i for i in others]
    number = torch.zeros((), dtype=torch.int64)
    for each, size in zip(there, sizes, strict=True):
        at = each.to(torch.int64)
        _check(at, size, least=-size)
        number = number * size + torch.where(at < 0, at + size, at)
    table: Any = x.flatten(first, first + len(others) - 1).movedim(first, 0)
    result = _rows(table, send(number), (*number.shape, *table.shape[1:]))
    return result.movedim(tuple(range(number.ndim)), tuple(range(first, first + number.ndim)))


def _rows(table: WebGPUTensor, indices: Tensor, shape: tuple[int, ...]) -> Any:
    if not isinstance(indices, WebGPUTensor) or indices.dtype not in _INDICES:
        return NotImplemented
    _check(read(indices), table.shape[0])
    table, indices = whole(table), whole(indices)
    result = fresh(shape, table.dtype)
    constants = (
        ("ITEM_BITS", table.dtype.itemsize * 8),
        ("INDEX_WORDS", _INDICES[indices.dtype]),
    )
    shader = Shader("kernels/torch_copies/choose_rows", constants)
    buffers = {"table": table.memory, "indices": indices.memory, "result": result.memory}
    sizes = {"count": result.numel(), "row": table.numel() // max(table.shape[0], 1)}
    launch(shader, buffers, sizes, words(result), bake=False)
    return result


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
    result, start = fresh(tuple(shape), dtype), 0
    for x in parts:
        part: Any = result.narrow(dim, start, x.shape[dim])
        scatter(part, cast(x, dtype))
        start += x.shape[dim]
    return result


@handles("stack.default")
def stack(tensors: Any, dim: int = 0) -> Any:
    """Tensors one after the other along a new dimension."""
    return cat([x.unsqueeze(dim) for x in tensors], dim % (tensors[0].ndim + 1))
