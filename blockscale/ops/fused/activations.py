# SPDX-License-Identifier: BSD-3-Clause
"""Element by element, of one tensor: activations of networks."""

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.ops.fused.define import fused

# Element by element, of one tensor: functions of mathematics.


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


@fused(ulps=4, aten=("elu.default",))
def elu(x: Tensor, *, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Tensor:
    """Exponential linear unit; SELU is one with a scale: x [...] -> the same shape."""
    y: Tensor = torch.ops.aten.elu(x, alpha, scale, input_scale)
    return y


@fused(ulps=4, aten=("gelu.default",))
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """x * the normal distribution's function of x, or its approximation.

    x [...] -> the same shape; approximate: "none" or "tanh".
    """
    return F.gelu(x, approximate=approximate)


@fused(aten=("hardsigmoid.default",))
def hardsigmoid(x: Tensor) -> Tensor:
    """x / 6 + 1 / 2 within 0 and 1: x [...] -> the same shape."""
    return F.hardsigmoid(x)


@fused(aten=("hardswish.default",))
def hardswish(x: Tensor) -> Tensor:
    """x * hardsigmoid(x): x [...] -> the same shape."""
    return F.hardswish(x)


@fused(aten=("hardtanh.default",))
def hardtanh(x: Tensor, *, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """x within two bounds: x [...] -> the same shape."""
    return F.hardtanh(x, min_val, max_val)


@fused(aten=("leaky_relu.default",))
def leaky_relu(x: Tensor, *, negative_slope: float = 0.01) -> Tensor:
    """x, or a fraction of it where it is negative: x [...] -> the same shape."""
    return F.leaky_relu(x, negative_slope)


@fused(ulps=4, aten=("mish.default",))
def mish(x: Tensor) -> Tensor:
    """x * tanh(softplus(x)): x [...] -> the same shape."""
    return F.mish(x)


@fused(aten=("prelu.default",))
def prelu(x: Tensor, *, weight: Tensor) -> Tensor:
    """x, or a learned fraction of it where it is negative.

    x [batch, n, ...], fractions [n] or [1] -> the same shape.
    """
    return torch.prelu(x, weight)


@fused(aten=("relu.default",))
def relu(x: Tensor) -> Tensor:
    """max(x, 0): x [...] -> the same shape."""
    return torch.relu(x)


@fused(aten=("relu6.default",))
def relu6(x: Tensor) -> Tensor:
    """x within 0 and 6: x [...] -> the same shape."""
    return F.relu6(x)


@fused(ulps=4, aten=("sigmoid.default",))
def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)): x [...] -> the same shape."""
    return torch.sigmoid(x)


@fused(ulps=4, aten=("silu.default",))
def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x): x [...] -> the same shape."""
    return F.silu(x)


@fused(ulps=4, aten=("softplus.default",))
def softplus(x: Tensor, *, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta * x)) / beta.

    x [...] -> the same shape; x itself where beta * x is above the threshold.
    """
    return F.softplus(x, beta, threshold)


@fused(ulps=4, aten=("tanh.default",))
def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent of x: x [...] -> the same shape."""
    return torch.tanh(x)
