"""a where a condition holds, else b."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(aten=("where.self condition a b",))
def where(a: Tensor, b: Tensor, *, condition: Tensor) -> Tensor:
    """a, b and a bool condition that broadcast -> of each two, the one that it says."""
    return torch.where(condition, a, b)
