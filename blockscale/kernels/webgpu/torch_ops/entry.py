# SPDX-License-Identifier: BSD-3-Clause
"""The device for users: what `bs.webgpu()` does."""

from functools import cache

import torch

from blockscale.core.discover import import_all
from blockscale.kernels.webgpu.gpu.device import gpu
from blockscale.kernels.webgpu.torch_device.tensor import registered
from blockscale.kernels.webgpu.torch_ops import __name__ as package
from blockscale.kernels.webgpu.torch_ops import __path__ as folder
from blockscale.kernels.webgpu.torch_ops.factories import register


@cache
def device() -> torch.device:
    """torch's device "webgpu", ready: with all that runs torch's ops on it.

    Raises RuntimeError where there is no adapter, or another library has taken torch's place for
    such devices.
    """
    gpu()
    import_all(package, folder)
    found = registered()
    register()
    return found
