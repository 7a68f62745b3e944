"""exp(x), divided by its sum."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(ulps=64, aten=("softmax.int x dim @", "_softmax.default x dim !"))
def softmax(x: Tensor, *, dim: int) -> Tensor:
    """x [...] -> the same shape, with a sum of 1 along `dim`."""
    return torch.softmax(x, dim)
