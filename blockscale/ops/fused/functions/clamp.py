"""x, but not below one number nor above another."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(aten=("clamp.default", "clamp_min.default", "clamp_max.default x max"))
def clamp(x: Tensor, *, min: float | None = None, max: float | None = None) -> Tensor:
    """x [...] -> the same shape, within bounds; None is no bound."""
    return torch.clamp(x, min, max)
