# SPDX-License-Identifier: BSD-3-Clause
"""Products of floats with floats, which the device "webgpu" computes for torch."""

import torch

from blockscale.kernels.webgpu.gpu.memory import Memory
from blockscale.kernels.webgpu.matmul.factors import Left, Places, floats
from blockscale.kernels.webgpu.matmul.product import product
from blockscale.kernels.webgpu.torch_device.tensor import WebGPUTensor


def dense(a: WebGPUTensor, b: WebGPUTensor, dtype: torch.dtype) -> Memory:
    """[batches, m, k] x [batches, k, n] -> [batches, m, n] of dtype; views of any strides.

    Sums are of float32 and rounded once. No size but k is 0; a and b are float32, bfloat16 or
    float16 each.
    """
    (batches, m, k), n = a.shape, b.shape[2]
    batch, column, row = b.stride()
    right = floats(b.memory, b.dtype, n, Places(int(b.storage_offset()), batch, row, column))
    left = Left(a.memory, a.dtype, m, k, batches, Places(int(a.storage_offset()), *a.stride()))
    return product(left, right, None, dtype)
