"""x, or a fraction of it where it is negative."""

import torch.nn.functional as F
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(aten=("leaky_relu.default",))
def leaky_relu(x: Tensor, *, negative_slope: float = 0.01) -> Tensor:
    """x [...] -> the same shape."""
    return F.leaky_relu(x, negative_slope)
