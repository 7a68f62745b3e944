"""The mean of each window over 2 dimensions."""

import torch.nn.functional as F
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(ulps=64, aten=("avg_pool2d.default",))
def avg_pool2d(
    x: Tensor,
    *,
    kernel_size: list[int],
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """x [batch, n, h, w] -> fewer along the last 2; no stride is that of the kernel."""
    return F.avg_pool2d(
        x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )
