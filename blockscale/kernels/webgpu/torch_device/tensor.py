"""A tensor on the device "webgpu": torch sees its sizes, kernels its memory."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from blockscale.kernels.webgpu.gpu.memory import Memory, download, upload

NAME = "webgpu"


class WebGPUTensor(Tensor):
    """Numbers in memory on the GPU, of which this is all or, with strides, a view."""

    memory: Memory

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(
        cls,
        memory: Memory,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        stride: tuple[int, ...] | None = None,
        offset: int = 0,
    ) -> WebGPUTensor:
        if stride is None:  # rows after one another
            stride = torch.empty(shape, device="meta").stride()
        made: WebGPUTensor = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            shape,
            strides=stride,
            storage_offset=offset,
            dtype=dtype,
            device=webgpu(),
        )
        made.memory = memory
        return made

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        raise NotImplementedError(func)


@cache
def webgpu() -> torch.device:
    """torch's device "webgpu", registered at the first call.

    Raises RuntimeError if another library has taken the place that torch has for such devices.
    """
    from torch.utils import backend_registration

    backend_registration._setup_privateuseone_for_python_backend(NAME)
    return torch.device(NAME, 0)


def on_gpu(x: Tensor) -> Memory:
    """The memory of a contiguous tensor on the GPU; one on the CPU is uploaded."""
    if isinstance(x, WebGPUTensor):
        return x.memory
    return upload(x)


def given_back(memory: Memory, shape: tuple[int, ...], dtype: torch.dtype, like: Tensor) -> Tensor:
    """A result where `like` is: on the GPU, or read back to the CPU."""
    if isinstance(like, WebGPUTensor):
        return WebGPUTensor(memory, shape, dtype)
    return download(memory, shape, dtype)
