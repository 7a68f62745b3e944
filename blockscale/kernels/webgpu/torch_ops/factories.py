# SPDX-License-Identifier: BSD-3-Clause
"""New tensors: torch makes all others of `empty`, which has no tensor to be dispatched by."""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from blockscale.kernels.webgpu.gpu.adapter import NAMED
from blockscale.kernels.webgpu.gpu.device import gpu
from blockscale.kernels.webgpu.gpu.memory import allocate
from blockscale.kernels.webgpu.torch_device.handlers import handles
from blockscale.kernels.webgpu.torch_device.tensor import NAME, WebGPUTensor
from blockscale.kernels.webgpu.torch_ops.copies import copy_, fresh, is_all
from blockscale.kernels.webgpu.torch_ops.fallback import on_cpu, replaced

Sizes = tuple[int, ...]


@cache
def register() -> tuple[Any, ...]:
    """Tell torch how tensors on the device are made. What is returned must live."""
    aten = torch.library.Library("aten", "IMPL")
    aten.impl("empty.memory_format", empty, "PrivateUse1")
    aten.impl("empty_strided", empty_strided, "PrivateUse1")
    aten.impl("copy_", copy_, "PrivateUse1")  # torch.tensor copies where handlers are left out
    others = torch.library.Library("_", "IMPL")
    others.fallback(lambda op, *args, **kwargs: on_cpu(op, args, kwargs), "PrivateUse1")
    return aten, others


def empty(
    size: Any, dtype: torch.dtype | None = None, *_: Any, device: Any = None, **__: Any
) -> Tensor:
    """torch.empty(size, dtype=..., device="webgpu"). Raises RuntimeError for another than 0."""
    _check_number(device)
    return fresh(tuple(size), dtype or torch.get_default_dtype())


def empty_strided(
    size: Any,
    stride: Any,
    dtype: torch.dtype | None = None,
    *_: Any,
    device: Any = None,
    **__: Any,
) -> Tensor:
    """torch.empty_strided(size, stride, dtype=..., device="webgpu")."""
    _check_number(device)
    dtype = dtype or torch.get_default_dtype()
    return _strided(tuple(size), tuple(stride), dtype)


def _check_number(device: Any) -> None:
    if device is not None and device.index not in (None, 0):
        raise RuntimeError(
            f"no device {device}: a process uses one GPU, webgpu:0; set {NAMED} to choose it"
        )


def _strided(size: Sizes, stride: Sizes, dtype: torch.dtype) -> Tensor:
    reach = sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    count = reach + 1 if 0 not in size else 0
    return WebGPUTensor(allocate(count * dtype.itemsize), size, dtype, stride)


def _like(x: Tensor, size: Sizes | None, dtype: Any, device: Any) -> Tensor:
    shape = tuple(x.shape) if size is None else tuple(size)
    if device is not None and torch.device(device).type != NAME:
        return torch.empty(shape, dtype=dtype or x.dtype, device=device)
    return fresh(shape, dtype or x.dtype)


@handles("empty_like.default")
def empty_like(x: Tensor, *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    """A tensor of x's sizes that nobody has written yet."""
    return _like(x, None, dtype, device)


@handles("new_empty.default")
def new_empty(x: Tensor, size: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    """A tensor of x's dtype that nobody has written yet."""
    return _like(x, size, dtype, device)


@handles("new_empty_strided.default")
def new_empty_strided(
    x: Tensor, size: Any, stride: Any, *, dtype: Any = None, device: Any = None, **_: Any
) -> Tensor:
    """A tensor of x's dtype and of these strides that nobody has written yet."""
    return torch.empty_strided(size, stride, dtype=dtype or x.dtype, device=device or x.device)


@handles("zeros_like.default")
def zeros_like(x: Tensor, *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    """Zeros of x's sizes."""
    return _like(x, None, dtype, device).zero_()


@handles("new_zeros.default")
def new_zeros(x: Tensor, size: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    """Zeros of x's dtype."""
    return _like(x, size, dtype, device).zero_()


@handles("ones_like.default")
def ones_like(x: Tensor, *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    """Ones of x's sizes."""
    return _like(x, None, dtype, device).fill_(1)


@handles("new_ones.default")
def new_ones(x: Tensor, size: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    """Ones of x's dtype."""
    return _like(x, size, dtype, device).fill_(1)


@handles("full_like.default")
def full_like(x: Tensor, value: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    """One number in x's sizes."""
    return _like(x, None, dtype, device).fill_(value)


@handles("new_full.default")
def new_full(
    x: Tensor, size: Any, value: Any, *, dtype: Any = None, device: Any = None, **_: Any
) -> Tensor:
    """One number in x's dtype."""
    return _like(x, size, dtype, device).fill_(value)


@handles("zero_.default")
def zero_(x: WebGPUTensor) -> WebGPUTensor:
    """Write zeros."""
    if is_all(x):
        with gpu().encoder() as encoder:
            encoder.clear_buffer(x.memory.buffer, 0, x.memory.buffer.size)
        return x
    return fill_(x, 0)


@handles("fill_.Scalar", "fill_.Tensor")
def fill_(x: WebGPUTensor, value: Any) -> WebGPUTensor:
    """Write one number everywhere."""
    number = value if isinstance(value, Tensor) else torch.tensor(value).to(x.dtype)
    copy_(x, number)
    return x


@handles("arange.start_out")
def arange(start: Any, end: Any, step: Any = 1, *, out: WebGPUTensor) -> Tensor:
    """Numbers in steps, made on the CPU: they are few."""
    return replaced(out, torch.arange(start, end, step, dtype=out.dtype))
