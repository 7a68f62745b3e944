"""The smaller of a and b."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(aten=("minimum.default", "min.other"))
def minimum(a: Tensor, b: Tensor) -> Tensor:
    """a [...], b [...] that broadcast -> the smaller of each two; NaN where one is."""
    return torch.minimum(a, b)
