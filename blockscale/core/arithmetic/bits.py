# SPDX-License-Identifier: BSD-3-Clause
"""Exponents and powers of two from bits, exact for every float32 including subnormals.

Never `log2`: it rounds up just below powers of two (docs/numerics.md, notation).
"""

import torch
from torch import Tensor

FLT_MAX = (2.0 - 2.0**-23) * 2.0**127
FLT_MIN = 2.0**-126  # the smallest normal float32
FLT_SMALLEST = 2.0**-149  # the smallest float32 above 0


def exponent(x: Tensor) -> Tensor:
    """x [...] float32, finite and not 0 -> floor(log2|x|) [...] int32."""
    return torch.frexp(x).exponent - 1


def mantissa(x: Tensor) -> Tensor:
    """x [...] float32, finite and not 0 -> the 23 fraction bits of |x| normalized, int32."""
    fraction = torch.frexp(x.abs()).mantissa  # in [0.5, 1)
    return fraction.view(torch.int32) & 0x7FFFFF


def pow2(n: Tensor) -> Tensor:
    """n [...] int32 in -149 ... 127 -> 2^n [...] float32."""
    normal = (n.clamp(min=-126) + 127) << 23
    subnormal = torch.ones_like(n) << (n.clamp(max=-127) + 149)
    return torch.where(n >= -126, normal, subnormal).view(torch.float32)


def divide(x: Tensor, value: float) -> Tensor:
    """x [...] float32 / value, by IEEE division.

    `x / 448.0` would not do: torch's CUDA kernel multiplies by the reciprocal of a Python number.
    """
    return x / torch.full((), value, dtype=torch.float32, device=x.device)
