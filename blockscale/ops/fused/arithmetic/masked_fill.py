"""A number where a mask holds, else a."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(aten=("masked_fill.Scalar",))
def masked_fill(a: Tensor, *, mask: Tensor, value: float) -> Tensor:
    """a and a bool mask that broadcast -> a, but the number where the mask holds."""
    return torch.masked_fill(a, mask, value)
