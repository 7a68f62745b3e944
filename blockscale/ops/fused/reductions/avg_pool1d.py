"""The mean of each window over 1 dimension."""

import torch.nn.functional as F
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(ulps=64, aten=("avg_pool1d.default",))
def avg_pool1d(
    x: Tensor,
    *,
    kernel_size: list[int],
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """x [batch, n, length] -> fewer along the last 1; no stride is that of the kernel."""
    return F.avg_pool1d(x, kernel_size, stride, padding, ceil_mode, count_include_pad)
