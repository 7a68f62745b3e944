# SPDX-License-Identifier: BSD-3-Clause
"""x @ weight.T on the GPU: weights are decoded where they are multiplied."""

import torch
from torch import Tensor

from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer
from blockscale.kernels.registry import kernel
from blockscale.kernels.webgpu.gpu.memory import Memory
from blockscale.kernels.webgpu.matmul.factors import Left
from blockscale.kernels.webgpu.matmul.product import Bias, product
from blockscale.kernels.webgpu.matmul.weight import right_of
from blockscale.kernels.webgpu.primitives import choose_encode
from blockscale.kernels.webgpu.primitives.decode import decode
from blockscale.kernels.webgpu.primitives.encode import codes, seed_memory
from blockscale.kernels.webgpu.primitives.form import back, floats, form, memory_of, moved
from blockscale.kernels.webgpu.primitives.parts import given_parts
from blockscale.kernels.webgpu.spec import known


@kernel("linear", backend="webgpu", supports=known)
def linear(
    x: Tensor, weight: Operand, bias: Tensor | None = None, input: Quantizer = UNQUANTIZED
) -> Tensor:
    """As ops.linear.linear."""
    n, k = weight.codes.shape[0], x.shape[-1]
    if k != weight.size:
        raise ValueError(f"expected x of shape [..., {weight.size}], found {tuple(x.shape)}")
    right = right_of(weight)
    bias = None if bias is None else bias.expand(n)
    shape = (*x.shape[:-1], n)
    if not x.numel() or not n:
        y = torch.zeros(shape, dtype=x.dtype)
        return moved(y if bias is None else y.copy_(bias.cpu()), x)
    left = Left(floats(x), x.dtype, x.numel() // k, k)
    if input.fmt:
        left = left._replace(memory=_quantized(x, left.memory, input), dtype=torch.float32)
    added = None if bias is None else Bias(memory_of(bias), bias.dtype)
    return back(product(left, right, added, x.dtype), shape, x.dtype, x)


def _quantized(x: Tensor, memory: Memory, by: Quantizer) -> Memory:
    """The float32 values that the input format leaves of x, as ops.linear.quantized_input."""
    f, shape = form(by.fmt), tuple(x.shape)
    if by.scale is None:
        f.scale_shape(shape)  # raises if the block does not fit
        packed, parts = choose_encode.codes(f, memory, x.dtype, shape, by.seed)
    else:
        parts = given_parts(f, shape, by.scale, by.zero_point, by.outer, by.more, x)
        packed = codes(f, memory, x.dtype, shape, parts, seed_memory(f, by.seed))
    return decode(f, packed, shape, parts, torch.float32)
