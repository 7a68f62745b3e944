"""The layer norm of a + b: what ends a residual branch."""

import torch.nn.functional as F
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(ulps=64)
def add_layer_norm(
    a: Tensor,
    b: Tensor,
    *,
    normalized_shape: list[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """a, b [..., *normalized_shape] that broadcast -> the normalized sum."""
    return F.layer_norm(a + b, normalized_shape, weight, bias, eps)
