"""x, or a learned fraction of it where it is negative."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(aten=("prelu.default",))
def prelu(x: Tensor, *, weight: Tensor) -> Tensor:
    """x [batch, n, ...], fractions [n] or [1] -> the same shape."""
    return torch.prelu(x, weight)
