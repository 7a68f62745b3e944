"""x with mean 0 and variance 1 over the last dimensions."""

import torch.nn.functional as F
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(
    ulps=64,
    aten=(
        "layer_norm.default x normalized_shape weight bias eps *",
        "native_layer_norm.default[0] x normalized_shape weight bias eps",
    ),
)
def layer_norm(
    x: Tensor,
    *,
    normalized_shape: list[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """x [..., *normalized_shape], floats weight and bias of those sizes -> the same shape."""
    return F.layer_norm(x, normalized_shape, weight, bias, eps)
