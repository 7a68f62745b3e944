"""a / a number."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(aten=("div.Scalar", "div.Tensor a other"))
def div_scalar(a: Tensor, *, other: float) -> Tensor:
    """a [...] -> the same divided by a number."""
    return torch.div(a, other)
