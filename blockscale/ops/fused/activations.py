# SPDX-License-Identifier: BSD-3-Clause
"""Element by element, of one tensor: activations of networks."""

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.ops.fused.define import fused


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
