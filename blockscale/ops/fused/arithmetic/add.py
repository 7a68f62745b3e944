"""a + alpha * b."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(aten=("add.Tensor",))
def add(a: Tensor, b: Tensor, *, alpha: float = 1.0) -> Tensor:
    """a [...], b [...] that broadcast -> their sum."""
    return torch.add(a, b, alpha=alpha)
