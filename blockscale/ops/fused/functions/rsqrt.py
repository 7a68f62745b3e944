"""1 / the square root of x."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(ulps=4, aten=("rsqrt.default",))
def rsqrt(x: Tensor) -> Tensor:
    """x [...] -> the same shape."""
    return torch.rsqrt(x)
