"""a where a condition holds, else a number."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(aten=("where.ScalarOther condition a other",))
def where_scalar(a: Tensor, *, condition: Tensor, other: float) -> Tensor:
    """a and a bool condition that broadcast -> a, or the number."""
    return torch.where(condition, a, other)
