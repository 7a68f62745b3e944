"""The magnitude of x."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(aten=("abs.default",))
def abs(x: Tensor) -> Tensor:  # noqa: A001  (torch's name)
    """x [...] -> the same shape."""
    return torch.abs(x)
