"""The logarithm of softmax."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(ulps=64, aten=("log_softmax.int x dim @", "_log_softmax.default x dim !"))
def log_softmax(x: Tensor, *, dim: int) -> Tensor:
    """x [...] -> the same shape."""
    return torch.log_softmax(x, dim)
