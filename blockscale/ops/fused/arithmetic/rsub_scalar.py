"""A number - alpha * a."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(aten=("rsub.Scalar",))
def rsub_scalar(a: Tensor, *, other: float, alpha: float = 1.0) -> Tensor:
    """a [...] -> a number minus a."""
    return torch.rsub(a, other, alpha=alpha)
