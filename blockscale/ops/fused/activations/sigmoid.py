"""1 / (1 + exp(-x))."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(ulps=4, aten=("sigmoid.default",))
def sigmoid(x: Tensor) -> Tensor:
    """x [...] -> the same shape."""
    return torch.sigmoid(x)
