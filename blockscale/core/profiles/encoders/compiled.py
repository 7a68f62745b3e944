# SPDX-License-Identifier: BSD-3-Clause
"""Float32 as a loop of compiled C has it, rounded after each operation.

A compiler may instead fuse a * b + c to one operation where the processor has it, which changes
bytes; x86-64 without options, which is how ggml builds these functions, has none. Tensors have the
elements of a block along dimension 0, and all blocks along the others.
"""

import torch
from torch import Tensor

_MAGIC = 12582912.0  # 3 * 2^22: a float32 sum with it has its integer part in the last 22 bits


def ordered_sum(terms: Tensor) -> Tensor:
    """The sum of terms [n, ...] along dimension 0, in order, from 0."""
    total = torch.zeros_like(terms[0])
    for each in terms:
        total = total + each
    return total


def nearest_int(x: Tensor) -> Tensor:
    """x [...] float32 -> int32, half to even; beyond 2^22 what the bits say (ggml)."""
    bits: Tensor = (x + _MAGIC).contiguous().view(torch.int32)
    return (bits & 0x7FFFFF) - 0x400000


def square_root(x: Tensor) -> Tensor:
    """The float32 root, rounded once: torch's own float32 root is not, of one number in six (2.13).

    No root of a float32 number lies so close to the middle of two that float64's could decide
    for the wrong one.
    """
    return x.double().sqrt().to(torch.float32)
