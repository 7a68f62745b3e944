"""The means of so many windows over 2 dimensions."""

import torch.nn.functional as F
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(ulps=64, aten=("adaptive_avg_pool2d.default",))
def adaptive_avg_pool2d(x: Tensor, *, output_size: list[int]) -> Tensor:
    """x [batch, n, h, w] -> the last 2 of `output_size`."""
    return F.adaptive_avg_pool2d(x, output_size)  # type: ignore[arg-type]
