"""x * the normal distribution's function of x, or its approximation."""

import torch.nn.functional as F
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(ulps=4, aten=("gelu.default",))
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """x [...] -> the same shape; approximate: "none" or "tanh"."""
    return F.gelu(x, approximate=approximate)
