"""The square root of x."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(aten=("sqrt.default",))
def sqrt(x: Tensor) -> Tensor:
    """x [...] -> the same shape."""
    return torch.sqrt(x)
