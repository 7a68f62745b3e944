"""x with mean 0 and variance 1 over groups of channels."""

import torch.nn.functional as F
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(ulps=64, aten=("group_norm.default x num_groups weight bias eps *",))
def group_norm(
    x: Tensor,
    *,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """x [batch, n, ...], floats weight and bias [n] -> the same shape."""
    return F.group_norm(x, num_groups, weight, bias, eps)
