"""a to the power of a number."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(ulps=4, aten=("pow.Tensor_Scalar",))
def pow_scalar(a: Tensor, *, exponent: float) -> Tensor:
    """a [...] -> its powers."""
    return torch.pow(a, exponent)
