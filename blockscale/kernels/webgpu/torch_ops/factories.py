# SPDX-License-Identifier: BSD-3-Clause
"""The device for users, tensors that are made there, and ops that run on the CPU."""

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from blockscale.core import import_all
from blockscale.core.torch_private import DispatchKey, has_kernel, pytree
from blockscale.kernels.webgpu.gpu.device import NAMED, gpu
from blockscale.kernels.webgpu.gpu.memory import allocate
from blockscale.kernels.webgpu.torch_device import (
    NAME,
    WebGPUTensor,
    handles,
    handles_rest,
    webgpu_device,
)
from blockscale.kernels.webgpu.torch_ops import __name__ as package
from blockscale.kernels.webgpu.torch_ops import __path__ as folder
from blockscale.kernels.webgpu.torch_ops.copies import copy_, fresh, is_all, read, send

# What has no kernel on the device is computed on the CPU, and said so once an op.

_COMPOSITE = "CompositeImplicitAutograd"
_OURS = DispatchKey.CompositeExplicitAutograd
_ANSWERS = ("equal", "is_nonzero", "allclose")  # they are asked for what the CPU wants to know
_warned: set[str] = set()


@handles_rest
def run(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an op that has no handler: ours by its kernels, views without any, others on the CPU."""
    if op.namespace == "blockscale":
        return op._op_dk(_OURS, *args, **kwargs)
    if _is_composite(op):
        return op.decompose(*args, **kwargs)
    if op.is_view or op is torch.ops.aten._unsafe_view.default:
        return view_of(op, args, kwargs)
    return on_cpu(op, args, kwargs)


@cache
def _is_composite(op: Any) -> bool:
    """Whether torch makes it of others, which it leaves to us where nothing asks for gradients."""
    return bool(has_kernel(op.name(), _COMPOSITE))


def on_cpu(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an op on the CPU, on what its tensors hold, with results on the device."""
    if op.overloadpacket.__name__ not in _ANSWERS:
        _warn(op, args)
    read_back: dict[int, tuple[WebGPUTensor, Tensor]] = {}

    def down(x: Any) -> Any:
        if isinstance(x, WebGPUTensor):
            if id(x) not in read_back:
                read_back[id(x)] = (x, read(x))
            return read_back[id(x)][1]
        return torch.device("cpu") if isinstance(x, torch.device) and x.type == NAME else x

    result = op(*pytree.tree_map(down, args), **pytree.tree_map(down, kwargs))
    _write_back(op, args, kwargs, read_back)
    origin = {id(there): x for x, there in read_back.values()}

    def up(x: Tensor) -> Tensor:
        return origin[id(x)] if id(x) in origin else send(x)

    return pytree.tree_map_only(Tensor, up, result)


def _write_back(
    op: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    read_back: dict[int, tuple[WebGPUTensor, Tensor]],
) -> None:
    """Write what the op has changed."""
    for i, argument in enumerate(op._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        tensor = args[i] if i < len(args) else kwargs.get(argument.name)
        for x in pytree.tree_leaves(tensor):
            if not isinstance(x, WebGPUTensor):
                continue
            replace_with(x, read_back[id(x)][1])


def replace_with(x: WebGPUTensor, by: Tensor) -> WebGPUTensor:
    """x with the numbers of a tensor on the CPU, and its sizes: torch resizes what is empty."""
    if by.shape == x.shape:
        copy_(x, by)
    else:
        x.data = send(by)
    return x


def _warn(op: Any, args: tuple[Any, ...]) -> None:
    name = str(op)
    if name in _warned:
        return
    _warned.add(name)
    dtypes = {str(x.dtype)[6:] for x in pytree.tree_leaves(args) if isinstance(x, Tensor)}
    of = f" of {' and '.join(sorted(dtypes))}" if dtypes else ""
    warnings.warn(
        f"webgpu has no kernel for {name}{of}: it runs on the CPU, and its tensors are read back",
        stacklevel=6,
    )


def reference_on_cpu(reference: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Run a reference of ours on the CPU: the device's own float arithmetic is not the contract's.

    Results are on the device.
    """
    on_cpu = pytree.tree_map_only(WebGPUTensor, read, args)
    return pytree.tree_map_only(Tensor, send, reference(*on_cpu))


# Views: torch's meta device says what they are, and they share their tensor's memory.


def as_meta(x: Tensor) -> Tensor:
    """A tensor of x's sizes, strides and offset that has no numbers."""
    reach = sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))
    least = x.storage_offset() + (reach + 1 if x.numel() else 0)
    storage = torch.empty(least, dtype=x.dtype, device="meta")
    return storage.as_strided(x.shape, x.stride(), x.storage_offset())


def view_of(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What an op gives whose results are views of its first argument."""
    x = args[0]
    result = op(as_meta(x), *args[1:], **kwargs)
    return pytree.tree_map_only(Tensor, lambda view: _sharing(x, view), result)


def _sharing(x: WebGPUTensor, view: Tensor) -> WebGPUTensor:
    shape, stride = tuple(view.shape), view.stride()
    return WebGPUTensor(x.memory, shape, view.dtype, stride, int(view.storage_offset()))


@handles("detach.default", "alias.default", "lift_fresh.default")
def itself(x: WebGPUTensor) -> WebGPUTensor:
    """A view of all of it."""
    return _sharing(x, x)


@handles("t.default")
def transposed(x: WebGPUTensor) -> WebGPUTensor:
    """A matrix with rows and columns exchanged."""
    shape, stride = tuple(x.shape), x.stride()
    return WebGPUTensor(x.memory, shape[::-1], x.dtype, stride[::-1], int(x.storage_offset()))


# New tensors: torch makes all others of `empty`, which has no tensor to be dispatched by.

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
    return _with_strides(tuple(size), tuple(stride), dtype)


def _check_number(device: Any) -> None:
    if device is not None and device.index not in (None, 0):
        raise RuntimeError(
            f"no device {device}: a process uses one GPU, webgpu:0; set {NAMED} to choose it"
        )


def _with_strides(size: Sizes, stride: Sizes, dtype: torch.dtype) -> Tensor:
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
    return replace_with(out, torch.arange(start, end, step, dtype=out.dtype))


# The device for users: what `bs.webgpu()` does.


@cache
def device() -> torch.device:
    """torch's device "webgpu", ready: with all that runs torch's ops on it.

    Raises RuntimeError where there is no adapter, or another library has taken torch's place for
    such devices.
    """
    gpu()
    import_all(package, folder)
    result = webgpu_device()
    register()
    return result
