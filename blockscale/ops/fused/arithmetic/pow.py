"""a to the power of b."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(ulps=4, aten=("pow.Tensor_Tensor",))
def pow(a: Tensor, b: Tensor) -> Tensor:  # noqa: A001  (torch's name)
    """a [...], exponents b [...] that broadcast -> powers."""
    return torch.pow(a, b)
