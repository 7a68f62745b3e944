# SPDX-License-Identifier: BSD-3-Clause
"""Element by element, of one tensor: functions of mathematics."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(aten=("abs.default",))
def abs(x: Tensor) -> Tensor:  # noqa: A001  (torch's name)
    """The magnitude of x: x [...] -> the same shape."""
    return torch.abs(x)


@fused(aten=("clamp.default", "clamp_min.default", "clamp_max.default x max"))
def clamp(x: Tensor, *, min: float | None = None, max: float | None = None) -> Tensor:
    """x, but not below one number nor above another.

    x [...] -> the same shape, within bounds; None is no bound.
    """
    return torch.clamp(x, min, max)


@fused(ulps=4, aten=("exp.default",))
def exp(x: Tensor) -> Tensor:
    """e to the power of x: x [...] -> the same shape."""
    return torch.exp(x)


@fused(aten=("neg.default",))
def neg(x: Tensor) -> Tensor:
    """-x: x [...] -> the same shape."""
    return torch.neg(x)


@fused(aten=("reciprocal.default",))
def reciprocal(x: Tensor) -> Tensor:
    """1 / x: x [...] -> the same shape."""
    return torch.reciprocal(x)


@fused()
def requantize(x: Tensor) -> Tensor:
    """Codes of one format as codes of another.

    x [...] -> the same numbers, quantized as the result is.
    """
    return x.clone()


@fused(ulps=4, aten=("rsqrt.default",))
def rsqrt(x: Tensor) -> Tensor:
    """1 / the square root of x: x [...] -> the same shape."""
    return torch.rsqrt(x)


@fused(aten=("sqrt.default",))
def sqrt(x: Tensor) -> Tensor:
    """The square root of x: x [...] -> the same shape."""
    return torch.sqrt(x)
