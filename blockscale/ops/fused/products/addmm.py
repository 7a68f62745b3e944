"""beta * c + alpha * (a @ b)."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(ulps=64, aten=("addmm.default",), wide=True)
def addmm(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
    """c that broadcasts with [m, n], a [m, k], b [k, n] -> [m, n]."""
    return torch.addmm(c, a, b, beta=beta, alpha=alpha)
