"""Where the largest element is."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(aten=("argmax.default",), indices=True)
def argmax(x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """x [...] -> int64 indices, of all elements or along `dim`; the first of equal ones."""
    return torch.argmax(x, dim, keepdim)
