"""a * b."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(aten=("mul.Tensor",))
def mul(a: Tensor, b: Tensor) -> Tensor:
    """a [...], b [...] that broadcast -> their product."""
    return torch.mul(a, b)
