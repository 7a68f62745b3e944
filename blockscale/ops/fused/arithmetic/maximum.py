"""The larger of a and b."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(aten=("maximum.default", "max.other"))
def maximum(a: Tensor, b: Tensor) -> Tensor:
    """a [...], b [...] that broadcast -> the larger of each two; NaN where one is."""
    return torch.maximum(a, b)
