"""Tensors one behind the other along a dimension."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(aten=("cat.default", "concat.default", "concatenate.default"))
def cat(tensors: list[Tensor], *, dim: int = 0) -> Tensor:
    """Tensors [...] of one size but along `dim` -> all of them."""
    return torch.cat(tensors, dim)
