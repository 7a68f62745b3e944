"""The smallest element along dimensions."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(aten=("amin.default", "min.default x"))
def amin(x: Tensor, *, dim: tuple[int, ...] = (), keepdim: bool = False) -> Tensor:
    """x [...] -> without the dimensions, or with size 1 there; without any, all of them."""
    return torch.amin(x, dim, keepdim)
