# SPDX-License-Identifier: BSD-3-Clause
"""Copies: views become tensors of their own, tensors are written into views, dtypes change."""

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from blockscale.kernels.webgpu.gpu.device import gpu
from blockscale.kernels.webgpu.gpu.launch import launch
from blockscale.kernels.webgpu.gpu.memory import allocate, download, upload
from blockscale.kernels.webgpu.gpu.shader import Kernel, Shader
from blockscale.kernels.webgpu.torch_device.handlers import handles
from blockscale.kernels.webgpu.torch_device.tensor import NAME, WebGPUTensor, is_whole
from blockscale.kernels.webgpu.torch_ops.addresses import Sizes, addresses

FLOATS = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
# what casts to float32 read that is no float: the part that does
_OTHERS = {
    torch.bool: "bytes", torch.uint8: "bytes", torch.int32: "number_of_integer",
    torch.int64: "number_of_integer",
}  # fmt: skip
THREADS = 256  # invocations of a workgroup, one a word


@dataclass(frozen=True)
class Widen(Kernel, part="kernels/torch_widen"):
    """float32 of other numbers. numbers: torch/{numbers}; float: memory/float/{float}"""

    numbers: str
    float: str
    address: str


@dataclass(frozen=True)
class Convert(Kernel, part="kernels/torch_convert"):
    """Narrower floats of float32."""

    float: str


def fresh(shape: Sizes, dtype: torch.dtype) -> WebGPUTensor:
    """A tensor whose numbers nobody has written yet."""
    return WebGPUTensor(allocate(prod(shape) * dtype.itemsize), shape, dtype)


def words(x: WebGPUTensor) -> int:
    """Workgroups for all words of a new tensor."""
    return -(-x.numel() * x.dtype.itemsize // 4 // THREADS)


def sent(x: Tensor) -> WebGPUTensor:
    """A tensor on the CPU, on the device."""
    return WebGPUTensor(upload(x), tuple(x.shape), x.dtype)


def read(x: WebGPUTensor) -> Tensor:
    """A tensor on the device, on the CPU, in row-major order."""
    start = int(x.storage_offset()) * x.dtype.itemsize
    if not x.is_contiguous() or start % 4:
        x, start = gathered(x), 0
    return download(x.memory, tuple(x.shape), x.dtype, start)


def gathered(x: WebGPUTensor) -> WebGPUTensor:
    """A copy in row-major order, in memory of its own."""
    made = fresh(tuple(x.shape), x.dtype)
    _gather(x, made)
    return made


def _gather(x: WebGPUTensor, made: WebGPUTensor) -> None:
    """Write x into all of another memory, in row-major order."""
    if is_whole(x):
        with gpu().encoder() as encoder:
            size = -(-made.nbytes // 4) * 4
            encoder.copy_buffer_to_buffer(x.memory.buffer, 0, made.memory.buffer, 0, size)
        return
    at = addresses(tuple(x.shape), [x], always=True)
    shader = Shader("kernels/torch_gather", (("ITEM_BITS", x.dtype.itemsize * 8), *at.constants))
    buffers = {"x": x.memory, "result": made.memory, **at.buffers}
    launch(shader, buffers, {"count": x.numel()}, words(made), baked=False)


def whole(x: WebGPUTensor) -> WebGPUTensor:
    """The same numbers in row-major order from the first byte of memory: x itself, or a copy."""
    return x if is_whole(x) else gathered(x)


def scattered(into: WebGPUTensor, x: WebGPUTensor) -> None:
    """Write x, which is broadcast, into a tensor or view of the same dtype."""
    if x.memory is into.memory:
        x = gathered(x)
    if is_all(into) and x.shape == into.shape:
        _gather(x, into)
        return
    at = addresses(tuple(into.shape), [into, x], always=True)
    shader = Shader("kernels/torch_scatter", (("ITEM_BITS", x.dtype.itemsize * 8), *at.constants))
    buffers = {"x": x.memory, "result": into.memory, **at.buffers}
    count = into.numel()
    groups = -(-count * max(x.dtype.itemsize // 4, 1) // THREADS)
    launch(shader, buffers, {"count": count}, groups, baked=False)


def is_all(x: WebGPUTensor) -> bool:
    """Whether it is all of its memory, not only a part."""
    return is_whole(x) and x.nbytes == x.memory.nbytes


def cast(x: WebGPUTensor, dtype: torch.dtype) -> WebGPUTensor:
    """The numbers in another dtype, as torch converts them; on the CPU where WGSL cannot."""
    if x.dtype == dtype:
        return x
    if dtype in FLOATS and (x.dtype in FLOATS or x.dtype in _OTHERS):
        wide = x if x.dtype == torch.float32 else _widened(x)
        return wide if dtype == torch.float32 else narrowed(wide, dtype)
    return sent(read(x).to(dtype))


def _widened(x: WebGPUTensor) -> WebGPUTensor:
    made = fresh(tuple(x.shape), torch.float32)
    at = addresses(tuple(x.shape), [x])
    numbers = _OTHERS.get(x.dtype, "first")
    constants = (("ITEM_BITS", x.dtype.itemsize * 8), *at.constants)
    kernel = Widen(numbers, FLOATS.get(x.dtype, "float32"), at.address)
    shader = Shader(kernel, constants)
    buffers = {"x": x.memory, "result": made.memory, **at.buffers}
    launch(shader, buffers, {"count": x.numel()}, words(made), baked=False)
    return made


def narrowed(x: WebGPUTensor, dtype: torch.dtype) -> WebGPUTensor:
    """float32 -> a narrower float; x itself if `dtype` is float32."""
    if dtype == torch.float32:
        return x
    x, made = whole(x), fresh(tuple(x.shape), dtype)
    shader = Shader(Convert(FLOATS[dtype]))
    buffers = {"x": x.memory, "result": made.memory}
    launch(shader, buffers, {"count": x.numel()}, words(made), baked=False)
    return made


@handles("clone.default")
def clone(x: WebGPUTensor, *, memory_format: Any = None) -> Tensor:
    """A copy, in row-major order whatever the format asked for: its numbers are the same."""
    del memory_format
    return gathered(x)


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
    return gathered(x) if dtype == x.dtype else cast(x, dtype)


@handles("copy_.default")
def copy_(into: Tensor, x: Tensor, non_blocking: bool = False) -> Tensor:
    """Write one tensor into another one; either may be on the CPU."""
    del non_blocking
    if not isinstance(into, WebGPUTensor):
        assert isinstance(x, WebGPUTensor)
        return into.copy_(read(x))
    moved = x if isinstance(x, WebGPUTensor) else sent(x.to(into.dtype))
    scattered(into, cast(moved, into.dtype))
    return into


@handles("_local_scalar_dense.default")
def number_of(x: WebGPUTensor) -> Any:
    """The one number of a tensor."""
    return read(x).item()
