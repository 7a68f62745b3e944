"""The largest element of each window over 2 dimensions."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(
    aten=(
        "max_pool2d.default",
        "max_pool2d_with_indices.default[0] x kernel_size stride padding dilation ceil_mode",
    )
)
def max_pool2d(
    x: Tensor,
    *,
    kernel_size: list[int],
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (0,),
    dilation: tuple[int, ...] = (1,),
    ceil_mode: bool = False,
) -> Tensor:
    """x [batch, n, h, w] -> fewer along the last 2; no stride is that of the kernel."""
    return torch.max_pool2d(x, kernel_size, stride, padding, dilation, ceil_mode)
