"""The sum along dimensions."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(ulps=64, aten=("sum.default x @", "sum.dim_IntList x dim keepdim @"))
def sum(x: Tensor, *, dim: list[int] | None = None, keepdim: bool = False) -> Tensor:  # noqa: A001  (torch's name)
    """x [...] -> without the dimensions, or with size 1 there; None and [] are all of them."""
    return torch.sum(x, dim, keepdim)
