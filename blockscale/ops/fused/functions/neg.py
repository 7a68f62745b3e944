"""-x."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(aten=("neg.default",))
def neg(x: Tensor) -> Tensor:
    """x [...] -> the same shape."""
    return torch.neg(x)
