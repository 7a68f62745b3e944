"""x @ weight.T + bias, and an activation."""

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(ulps=64, aten=("linear.default x weight bias",), wide=True, activation=True)
def linear(x: Tensor, weight: Tensor, *, bias: Tensor | None = None) -> Tensor:
    """x [..., k], a weight [n, k], floats bias [n] -> [..., n]."""
    return F.linear(x, weight, None if bias is None else bias.to(torch.float32))
