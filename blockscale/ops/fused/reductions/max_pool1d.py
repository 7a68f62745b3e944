"""The largest element of each window over 1 dimension."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(aten=("max_pool1d.default",))
def max_pool1d(
    x: Tensor,
    *,
    kernel_size: list[int],
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (0,),
    dilation: tuple[int, ...] = (1,),
    ceil_mode: bool = False,
) -> Tensor:
    """x [batch, n, length] -> fewer along the last 1; no stride is that of the kernel."""
    return torch.max_pool1d(x, kernel_size, stride, padding, dilation, ceil_mode)
