# SPDX-License-Identifier: BSD-3-Clause
"""Views: torch's meta device says what they are, and they share their tensor's memory."""

from typing import Any

import torch
from torch import Tensor

from blockscale.core.torch_private import pytree
from blockscale.kernels.webgpu.torch_device.handlers import handles
from blockscale.kernels.webgpu.torch_device.tensor import WebGPUTensor


def as_meta(x: Tensor) -> Tensor:
    """A tensor of x's sizes, strides and offset that has no numbers."""
    reach = sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))
    least = x.storage_offset() + (reach + 1 if x.numel() else 0)
    storage = torch.empty(least, dtype=x.dtype, device="meta")
    return storage.as_strided(x.shape, x.stride(), x.storage_offset())


def view_of(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What an op gives whose results are views of its first argument."""
    x = args[0]
    made = op(as_meta(x), *args[1:], **kwargs)
    return pytree.tree_map_only(Tensor, lambda view: _sharing(x, view), made)


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
