# SPDX-License-Identifier: BSD-3-Clause
"""Weights whose values are no bfloat16, for many rows of x: as two bfloat16 each, by the library.

What the second one leaves of a value is at most 2^-17 of it, 128 units of 2^-24. Both products are
float32: the library's sum of one of them and the other as bfloat16 was 1759 units off at k = 4096.
Where x is bfloat16 and tensor cores add up all of k, k / 8 units are allowed, of which they lose
0.035 k themselves (docs/numerics.md, section 7; docs/cuda_linear.md).
"""

import torch
from torch import Tensor

from blockscale.core.operand import Operand
from blockscale.kernels.cuda.matmul.finish import Ends, add_up
from blockscale.kernels.cuda.quantize import decoded, dequantize

LEAST = 4096  # of k


def takes(x: Tensor, dtype: torch.dtype) -> bool:
    """Whether x [rows, k] and the result allow what is lost."""
    return x.dtype is dtype is torch.bfloat16 and x.shape[1] >= LEAST


def halves(x: Tensor, w: Operand, ends: Ends, dtype: torch.dtype) -> Tensor:
    """x [rows, k] @ weight.T -> [rows, n] of dtype, of what `takes` allows."""
    upper, lower = dequantize(w, torch.bfloat16), decoded(w, torch.bfloat16, "rest")
    (rows, _), n = x.shape, upper.shape[0]
    sums = x.new_empty((2, rows, n), dtype=torch.float32)
    for i, half in enumerate((upper, lower)):
        sums[i].copy_(product(x, half))
    return add_up(sums, 2, ends, x.new_empty((rows, n), dtype=dtype))


def product(x: Tensor, half: Tensor) -> Tensor:
    """x @ half.T in float32."""
    if not x.is_cuda:  # the interpreter's
        return x.to(torch.float32) @ half.to(torch.float32).t()
    return torch.mm(x, half.t(), out_dtype=torch.float32)
