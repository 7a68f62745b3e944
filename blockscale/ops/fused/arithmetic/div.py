"""a / b."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(aten=("div.Tensor",))
def div(a: Tensor, b: Tensor) -> Tensor:
    """a [...], b [...] that broadcast -> their quotient."""
    return torch.div(a, b)
