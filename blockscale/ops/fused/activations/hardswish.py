"""x * hardsigmoid(x)."""

import torch.nn.functional as F
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(aten=("hardswish.default",))
def hardswish(x: Tensor) -> Tensor:
    """x [...] -> the same shape."""
    return F.hardswish(x)
