"""The mean of each window over 3 dimensions."""

import torch.nn.functional as F
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(ulps=64, aten=("avg_pool3d.default",))
def avg_pool3d(
    x: Tensor,
    *,
    kernel_size: list[int],
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """x [batch, n, d, h, w] -> fewer along the last 3; no stride is that of the kernel."""
    return F.avg_pool3d(
        x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )
