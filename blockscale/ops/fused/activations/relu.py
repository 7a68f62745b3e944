"""max(x, 0)."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(aten=("relu.default",))
def relu(x: Tensor) -> Tensor:
    """x [...] -> the same shape."""
    return torch.relu(x)
