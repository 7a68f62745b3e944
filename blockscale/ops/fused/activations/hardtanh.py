"""x within two bounds."""

import torch.nn.functional as F
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(aten=("hardtanh.default",))
def hardtanh(x: Tensor, *, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """x [...] -> the same shape."""
    return F.hardtanh(x, min_val, max_val)
