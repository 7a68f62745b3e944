"""Exponential linear unit; SELU is one with a scale."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(ulps=4, aten=("elu.default",))
def elu(x: Tensor, *, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Tensor:
    """x [...] -> the same shape."""
    y: Tensor = torch.ops.aten.elu(x, alpha, scale, input_scale)
    return y
