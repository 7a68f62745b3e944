"""a + alpha * a number."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(aten=("add.Scalar", "add.Tensor a other alpha"))
def add_scalar(a: Tensor, *, other: float, alpha: float = 1.0) -> Tensor:
    """a [...] -> the same plus a number."""
    return torch.add(a, other, alpha=alpha)
