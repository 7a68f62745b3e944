"""x divided by the root of the mean of its squares."""

import torch.nn.functional as F
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(ulps=64, aten=("rms_norm.default",))
def rms_norm(
    x: Tensor,
    *,
    normalized_shape: list[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """x [..., *normalized_shape], floats weight of those sizes -> the same shape."""
    return F.rms_norm(x, normalized_shape, weight, eps)
