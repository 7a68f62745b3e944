"""log(1 + exp(beta * x)) / beta."""

import torch.nn.functional as F
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(ulps=4, aten=("softplus.default",))
def softplus(x: Tensor, *, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """x [...] -> the same shape; x itself where beta * x is above the threshold."""
    return F.softplus(x, beta, threshold)
