"""a * a number."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(aten=("mul.Scalar", "mul.Tensor a other"))
def mul_scalar(a: Tensor, *, other: float) -> Tensor:
    """a [...] -> the same times a number."""
    return torch.mul(a, other)
