"""beta * c + alpha * (a @ b), of batches."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(ulps=64, aten=("baddbmm.default",), wide=True)
def baddbmm(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
    """c that broadcasts with [batch, m, n], a [batch, m, k], b [batch, k, n] -> [batch, m, n]."""
    return torch.baddbmm(c, a, b, beta=beta, alpha=alpha)
