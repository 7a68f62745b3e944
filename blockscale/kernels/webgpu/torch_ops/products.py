# SPDX-License-Identifier: BSD-3-Clause
"""Products of matrices of floats, of any strides: sums are float32's."""

from typing import Any

import torch

from blockscale.kernels.webgpu.gpu.memory import Memory
from blockscale.kernels.webgpu.matmul import product as matmul
from blockscale.kernels.webgpu.matmul.factors import Left, Places, floats
from blockscale.kernels.webgpu.torch_device.handlers import handles
from blockscale.kernels.webgpu.torch_device.tensor import WebGPUTensor
from blockscale.kernels.webgpu.torch_ops.copies import FLOATS, fresh, narrowed
from blockscale.kernels.webgpu.torch_ops.elementwise import binary


def product(a: Any, b: Any, dtype: torch.dtype) -> Any:
    """[batches, m, k] x [batches, k, n] -> [batches, m, n] of dtype."""
    (batches, m, k), n = a.shape, b.shape[2]
    if b.shape[:2] != (batches, k):
        raise RuntimeError(
            f"matrices of {tuple(a.shape)} and {tuple(b.shape)} cannot be multiplied"
        )
    if 0 in (batches, m, k, n):
        return fresh((batches, m, n), dtype).zero_()
    return WebGPUTensor(dense(a, b, dtype), (batches, m, n), dtype)


def _refused(*matrices: WebGPUTensor) -> bool:
    return any(x.dtype not in FLOATS or x.dtype != matrices[0].dtype for x in matrices)


@handles("bmm.default")
def bmm(a: WebGPUTensor, b: WebGPUTensor) -> Any:
    """A product for each of a batch."""
    return NotImplemented if _refused(a, b) else product(a, b, a.dtype)


@handles("mm.default")
def mm(a: WebGPUTensor, b: WebGPUTensor) -> Any:
    """One product."""
    if _refused(a, b):
        return NotImplemented
    return product(a.unsqueeze(0), b.unsqueeze(0), a.dtype).squeeze(0)


@handles("addmm.default")
def addmm(c: Any, a: WebGPUTensor, b: WebGPUTensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """beta c + alpha a b."""
    if _refused(a, b):
        return NotImplemented
    made = product(a.unsqueeze(0), b.unsqueeze(0), torch.float32).squeeze(0)
    return _added(c, made, a.dtype, beta, alpha)


@handles("baddbmm.default")
def baddbmm(c: Any, a: WebGPUTensor, b: WebGPUTensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """beta c + alpha a b for each of a batch."""
    return (
        NotImplemented
        if _refused(a, b)
        else _added(c, product(a, b, torch.float32), a.dtype, beta, alpha)
    )


def _added(c: Any, made: Any, dtype: torch.dtype, beta: float, alpha: float) -> Any:
    """In float32, until it is rounded once."""
    if alpha != 1:
        made = binary("mul", made, alpha)
    if beta != 0:
        made = binary("add", made, c if beta == 1 else binary("mul", c, beta))
    return narrowed(made, dtype)


@handles("_fused_sdp_choice.default")
def attention(*_: Any, **__: Any) -> int:
    """Attention is made of products and softmax (torch's SDPBackend.MATH)."""
    return 0


def dense(a: WebGPUTensor, b: WebGPUTensor, dtype: torch.dtype) -> Memory:
    """[batches, m, k] x [batches, k, n] -> [batches, m, n] of dtype; views of any strides.

    Sums are of float32 and rounded once. No size but k is 0; a and b are float32, bfloat16 or
    float16 each.
    """
    (batches, m, k), n = a.shape, b.shape[2]
    batch, column, row = b.stride()
    right = floats(b.memory, b.dtype, n, Places(int(b.storage_offset()), batch, row, column))
    left = Left(a.memory, a.dtype, m, k, batches, Places(int(a.storage_offset()), *a.stride()))
    return matmul.product(left, right, None, dtype)
