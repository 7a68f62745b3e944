"""a - alpha * a number."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(aten=("sub.Scalar", "sub.Tensor a other alpha"))
def sub_scalar(a: Tensor, *, other: float, alpha: float = 1.0) -> Tensor:
    """a [...] -> the same minus a number."""
    return torch.sub(a, other, alpha=alpha)
