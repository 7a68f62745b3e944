"""x divided by its Euclidean length."""

import torch.nn.functional as F
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(ulps=64)
def l2_normalize(x: Tensor, *, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """x [...] -> the same shape, of length 1 along `dim`; lengths below eps count as eps."""
    return F.normalize(x, dim=dim, eps=eps)
