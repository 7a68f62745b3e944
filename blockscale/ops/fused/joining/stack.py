"""Tensors beside each other along a new dimension."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(aten=("stack.default",))
def stack(tensors: list[Tensor], *, dim: int = 0) -> Tensor:
    """Tensors [...] of one size -> all of them, along a dimension that is new."""
    return torch.stack(tensors, dim)
