"""a - alpha * b."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(aten=("sub.Tensor", "rsub.Tensor b a alpha"))
def sub(a: Tensor, b: Tensor, *, alpha: float = 1.0) -> Tensor:
    """a [...], b [...] that broadcast -> their difference."""
    return torch.sub(a, b, alpha=alpha)
