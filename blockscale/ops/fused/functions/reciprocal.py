"""1 / x."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(aten=("reciprocal.default",))
def reciprocal(x: Tensor) -> Tensor:
    """x [...] -> the same shape."""
    return torch.reciprocal(x)
