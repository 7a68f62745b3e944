# SPDX-License-Identifier: BSD-3-Clause
"""A tensor on the device "webgpu": torch sees its sizes, kernels its memory."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.core.torch_private import (
    DeviceType,
    device_guard,
    graph_task,
    no_torch_function,
    register_device,
    wrapper_subclass,
)
from blockscale.kernels.webgpu.gpu.memory import Memory, download, upload
from blockscale.kernels.webgpu.torch_device import handlers
from blockscale.kernels.webgpu.torch_device.module import Module

NAME = "webgpu"

_failed: list[BaseException] = []  # what an op raised that a backward pass had called


class _DroppedError(Exception):
    """In the place of an error that is set where Python must not be called."""


class _Guard(device_guard()):  # type: ignore[misc]
    """Tells torch which device this is.

    torch also asks while the error of an op unwinds a backward pass. To Python a function fails
    that returns while an error is set, and C++ would end the process. Catching another one drops
    it; `WebGPUTensor.backward` raises it again.
    """

    def type_(self) -> Any:
        try:
            raise _DroppedError
        except BaseException:
            return DeviceType.PrivateUse1


class WebGPUTensor(Tensor):
    """Numbers in memory on the GPU, of which this is all or, with strides, a view."""

    memory: Memory

    __torch_function__ = no_torch_function  # type: ignore[assignment]

    @staticmethod
    def __new__(
        cls,
        memory: Memory,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        stride: tuple[int, ...] | None = None,
        offset: int = 0,
    ) -> WebGPUTensor:
        made: WebGPUTensor = wrapper_subclass(
            cls,
            shape,
            strides=rows(shape) if stride is None else stride,
            storage_offset=offset,
            dtype=dtype,
            device=registered(),
        )
        made.memory = memory
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        try:
            return handlers.run(func, args, kwargs or {})
        except BaseException as error:
            _failed[:] = [error] if graph_task() != -1 else []
            raise

    def backward(self, *args: Any, **kwargs: Any) -> None:
        """As torch's. Raises what an op of the pass has raised."""
        try:
            super().backward(*args, **kwargs)
        except SystemError:  # the guard had to drop the error
            if not _failed:
                raise
            raise _failed.pop() from None

    @property
    def data(self) -> Tensor:
        """The same numbers without a gradient, as torch says. `x.data = y` makes x have y's."""
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        Tensor.data.__set__(self, value)  # type: ignore[attr-defined]
        assert isinstance(value, WebGPUTensor)  # torch has refused others
        self.memory = value.memory

    def untyped_storage(self) -> Any:
        """Raises NotImplementedError, which tells readers of storages that there is none."""
        raise NotImplementedError(f"a tensor on {self.device} has no storage: use .cpu() first")

    storage = untyped_storage

    def data_ptr(self) -> int:
        """A number that tensors share which begin at the same place; it is no address."""
        return id(self.memory) + int(self.storage_offset()) * self.dtype.itemsize

    def numpy(self, *, force: bool = False) -> Any:
        """The numbers as an array, if `force` allows to read them back; raises TypeError."""
        if not force:
            raise TypeError(f"a tensor on {self.device} cannot become an array: use .cpu().numpy()")
        return self.detach().cpu().numpy()

    def tolist(self) -> Any:
        """The numbers as Python's own, in nested lists."""
        return self.detach().cpu().tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        text = repr(self.detach().cpu())
        gradient = ", requires_grad=True" if self.requires_grad else ""
        if self.grad_fn is not None:
            gradient = f", grad_fn=<{type(self.grad_fn).__name__}>"
        parameter = "Parameter containing:\n" if isinstance(self, nn.Parameter) else ""
        return f"{parameter}{text[:-1]}, device='{self.device}'{gradient})"

    def __copy__(self) -> Any:
        return self._as(self.detach())

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            memo[id(self)] = self._as(self.detach().clone())
        return memo[id(self)]

    def _as(self, x: Any) -> Any:
        """Another tensor, as a parameter or wanting gradients if this one does."""
        x.requires_grad_(self.requires_grad)._is_param = isinstance(self, nn.Parameter)
        return x

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Files hold a tensor on the CPU, which every machine can read."""
        there: Tensor = self.detach().cpu()
        if isinstance(self, nn.Parameter):
            there = nn.Parameter(there, self.requires_grad)
        return there.requires_grad_(self.requires_grad).__reduce_ex__(protocol)


def rows(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a tensor whose rows lie after one another."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@cache
def registered() -> torch.device:
    """torch's device "webgpu", registered at the first call.

    Raises RuntimeError if another library has taken the place that torch has for such devices.
    """
    register_device(NAME, Module(), _Guard())
    if not torch.cuda.is_available():
        # torch makes threads for devices at a process's first backward pass. Where that was before
        # now there is none for this device; passes on the CPU alone run on their own thread anyway.
        torch.autograd.set_multithreading_enabled(False)
    return torch.device(NAME, 0)


def is_whole(x: WebGPUTensor) -> bool:
    """Whether it is its memory from the first byte, in row-major order."""
    return x.storage_offset() == 0 and x.is_contiguous()


def on_gpu(x: Tensor) -> Memory:
    """The memory of a tensor's numbers in row-major order: its own, or a copy's.

    A view on the GPU is copied there, a tensor on the CPU is uploaded.
    """
    if not isinstance(x, WebGPUTensor):
        return upload(x)
    if is_whole(x):
        return x.memory
    copied = x.clone(memory_format=torch.contiguous_format)
    assert isinstance(copied, WebGPUTensor)
    return copied.memory


def given_back(memory: Memory, shape: tuple[int, ...], dtype: torch.dtype, like: Tensor) -> Tensor:
    """A result where `like` is: on the GPU, or read back to the CPU."""
    if isinstance(like, WebGPUTensor):
        return WebGPUTensor(memory, shape, dtype)
    return download(memory, shape, dtype)
