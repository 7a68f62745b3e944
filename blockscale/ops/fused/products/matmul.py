"""a @ b."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(ulps=64, aten=("matmul.default", "mm.default"), wide=True)
def matmul(a: Tensor, b: Tensor) -> Tensor:
    """a [..., m, k], b [..., k, n] whose first dimensions broadcast -> [..., m, n]."""
    return torch.matmul(a, b)
