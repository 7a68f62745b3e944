"""x * sigmoid(x)."""

import torch.nn.functional as F
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(ulps=4, aten=("silu.default",))
def silu(x: Tensor) -> Tensor:
    """x [...] -> the same shape."""
    return F.silu(x)
