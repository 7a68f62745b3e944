"""x @ weight.T on the GPU: weights are decoded where they are multiplied."""

import torch
from torch import Tensor

from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer
from blockscale.core.parse import parse
from blockscale.core.reference import FLOATS, widen
from blockscale.kernels.registry import kernel
from blockscale.kernels.webgpu.matmul.factors import Left, Right, floats
from blockscale.kernels.webgpu.matmul.product import Bias, product
from blockscale.kernels.webgpu.matmul.weight import codes, decodes, on_device
from blockscale.kernels.webgpu.primitives.form import back, memory_of, moved
from blockscale.kernels.webgpu.spec import known


@kernel("linear", backend="webgpu", supports=known)
def linear(
    x: Tensor, weight: Operand, bias: Tensor | None = None, input: Quantizer = UNQUANTIZED
) -> Tensor:
    """As ops.linear.linear."""
    if x.dtype not in FLOATS:
        widen(x)  # raises
    n, k = weight.codes.shape[0], x.shape[-1]
    if k != weight.size:
        raise ValueError(f"expected x of shape [..., {weight.size}], found {tuple(x.shape)}")
    there = on_device(weight)
    bias = None if bias is None else bias.expand(n)
    shape = (*x.shape[:-1], n)
    if not x.numel() or not n:
        y = torch.zeros(shape, dtype=x.dtype)
        return moved(y if bias is None else y.copy_(bias.cpu()), x)
    values, dtype = (x, x.dtype) if not input.fmt else (_quantized(x, input), torch.float32)
    left = Left(memory_of(values), dtype, x.numel() // k, k)
    added = None if bias is None else Bias(memory_of(bias), bias.dtype)
    return back(product(left, _right(there), added, x.dtype), shape, x.dtype, x)


def _right(weight: Operand) -> Right:
    """The weight, on the GPU, as it is multiplied."""
    if decodes(parse(weight.fmt)):
        return codes(weight)
    from blockscale.kernels.webgpu.dequantize import dequantize

    n, k = weight.codes.shape[0], weight.size
    return floats(memory_of(dequantize(weight, torch.float32)), torch.float32, n, (0, k, 1))


def _quantized(x: Tensor, by: Quantizer) -> Tensor:
    raise NotImplementedError
