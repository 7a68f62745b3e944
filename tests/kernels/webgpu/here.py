# SPDX-License-Identifier: BSD-3-Clause
"""Tensors on the device "webgpu" read back by their memory alone."""

from torch import Tensor

from blockscale.kernels.webgpu.gpu.memory import download
from blockscale.kernels.webgpu.torch_device import WebGPUTensor


def here(x: Tensor) -> Tensor:
    """A tensor on the CPU, whatever torch knows of the device."""
    if isinstance(x, WebGPUTensor):
        return download(x.memory, tuple(x.shape), x.dtype)
    return x
