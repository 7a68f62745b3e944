"""The mean along dimensions."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(ulps=64, aten=("mean.default x @", "mean.dim x dim keepdim @"))
def mean(x: Tensor, *, dim: list[int] | None = None, keepdim: bool = False) -> Tensor:
    """x [...] -> without the dimensions, or with size 1 there; None and [] are all of them."""
    return torch.mean(x, dim, keepdim)
