# SPDX-License-Identifier: BSD-3-Clause
"""torch's device "webgpu": tensors with memory on the GPU, and the way ops find what runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
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
from blockscale.kernels.webgpu.gpu.device import gpu, missing
from blockscale.kernels.webgpu.gpu.memory import Memory, allocate, download, release, upload

# What runs torch's ops on the device "webgpu": handlers, by the overload that they are for.

Handler = Callable[..., Any]
Rest = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]

HANDLERS: dict[Any, Handler] = {}
_rest: list[Rest] = []
_ACROSS = {  # ops whose tensors may be on several devices
    "copy_", "index", "index_put_", "index_put", "_index_put_impl_",
    "_has_compatible_shallow_copy_type",
}  # fmt: skip


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Register the decorated function for these overloads of aten, `add.Tensor`.

    It takes an overload's arguments, and gives NotImplemented for those that it is not for.
    """

    def register(handler: Handler) -> Handler:
        for name in names:
            packet, _, which = name.partition(".")
            result = getattr(getattr(torch.ops.aten, packet, None), which, None)
            if result is not None:  # each version of torch has ops that others lack
                HANDLERS[result] = handler
        return handler

    return register


def handles_rest(rest: Rest) -> Rest:
    """Register what runs the ops that have no handler."""
    _rest.append(rest)
    return rest


def run(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an op of torch's, some of whose tensors are on the device.

    Raises RuntimeError if others are elsewhere, and are more than a number.
    """
    _check_devices(op, args)
    handler = HANDLERS.get(op)
    if handler is not None:
        result = handler(*args, **kwargs)
        if result is not NotImplemented:
            return result
    return _rest[0](op, args, kwargs)


def _check_devices(op: Any, args: tuple[Any, ...]) -> None:
    for x in _tensors(args):
        if x.ndim and x.device.type != "webgpu" and op.overloadpacket.__name__ not in _ACROSS:
            raise RuntimeError(
                f"{op}: some tensors are on webgpu and one {tuple(x.shape)} is on {x.device}; "
                f"move it with .to('webgpu')"
            )


def _tensors(args: tuple[Any, ...]) -> Iterator[Tensor]:
    for arg in args:
        if isinstance(arg, Tensor):
            yield arg
        elif isinstance(arg, list | tuple):
            yield from (each for each in arg if isinstance(each, Tensor))


# What torch calls of a device beside its ops: the module `torch.webgpu`.


class Queue:
    """The device's one queue, where torch asks for a stream (torch.distributed.checkpoint)."""

    device_type = "webgpu"

    def synchronize(self) -> None:
        """Wait until all that was recorded has been computed."""
        download(allocate(4), (1,), torch.int32)  # reading waits for what was recorded before

    def wait_stream(self, other: object) -> None:
        """Nothing to do: there is no other one."""


_QUEUE = Queue()


class Module:
    """`torch.webgpu`: one device, whose random numbers are the CPU's."""

    def is_available(self) -> bool:
        """Whether there is an adapter."""
        return missing() is None

    def is_initialized(self) -> bool:
        """Whether it is ready: this module is there when it is."""
        return True

    def device_count(self) -> int:
        """One: BLOCKSCALE_WEBGPU_ADAPTER says which."""
        return 1

    def current_device(self) -> int:
        """Its number."""
        return 0

    def get_device_name(self, device: object = None) -> str:
        """The adapter's name, driver and way to it."""
        del device
        return gpu().name

    def synchronize(self, device: object = None) -> None:
        """Wait until all that was recorded has been computed."""
        del device
        _QUEUE.synchronize()

    def current_stream(self, device: object = None) -> Queue:
        """The one that there is."""
        del device
        return _QUEUE

    def stream(self, stream: Queue) -> AbstractContextManager[None]:
        """Inside, what is recorded goes to the one queue, as it does outside."""
        del stream
        return nullcontext()

    def empty_cache(self) -> None:
        """Give memory that no tensor uses back to the system."""
        gpu().flush()
        release()

    def manual_seed_all(self, seed: int) -> None:
        """Nothing to do: random numbers are drawn on the CPU, which torch.manual_seed seeds."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """What torch.autocast may take, which torch.utils.checkpoint asks of every device."""
        return [torch.float16, torch.bfloat16]

    def get_rng_state(self, device: object = None) -> torch.Tensor:
        """The CPU's, by which numbers are drawn; torch.compile keeps and restores it."""
        del device
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: object = None) -> None:
        """Set the CPU's."""
        del device
        torch.set_rng_state(state)

    def _is_in_bad_fork(self) -> bool:
        return False


# A tensor on the device "webgpu": torch sees its sizes, kernels its memory.

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
        tensor: WebGPUTensor = wrapper_subclass(
            cls,
            shape,
            strides=rows(shape) if stride is None else stride,
            storage_offset=offset,
            dtype=dtype,
            device=webgpu_device(),
        )
        tensor.memory = memory
        return tensor

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        try:
            return run(func, args, kwargs or {})
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
def webgpu_device() -> torch.device:
    """torch's device "webgpu", which the first call registers.

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
    copy = x.clone(memory_format=torch.contiguous_format)
    assert isinstance(copy, WebGPUTensor)
    return copy.memory


def wrap_memory(memory: Memory, shape: tuple[int, ...], dtype: torch.dtype, like: Tensor) -> Tensor:
    """A result where `like` is: on the GPU, or read back to the CPU."""
    if isinstance(like, WebGPUTensor):
        return WebGPUTensor(memory, shape, dtype)
    return download(memory, shape, dtype)
