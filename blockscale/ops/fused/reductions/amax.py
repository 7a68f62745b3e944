"""The largest element along dimensions."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(aten=("amax.default", "max.default x"))
def amax(x: Tensor, *, dim: tuple[int, ...] = (), keepdim: bool = False) -> Tensor:
    """x [...] -> without the dimensions, or with size 1 there; without any, all of them."""
    return torch.amax(x, dim, keepdim)
