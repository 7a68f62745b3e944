"""A batch of products of matrices."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(ulps=64, aten=("bmm.default",), wide=True)
def bmm(a: Tensor, b: Tensor) -> Tensor:
    """a [batch, m, k], b [batch, k, n] -> [batch, m, n]."""
    return torch.bmm(a, b)
