"""x * tanh(softplus(x))."""

import torch.nn.functional as F
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(ulps=4, aten=("mish.default",))
def mish(x: Tensor) -> Tensor:
    """x [...] -> the same shape."""
    return F.mish(x)
