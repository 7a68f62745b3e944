"""Convolutions over one, two or three dimensions, plain and transposed, with channels last.

Channels come last because blocks run along the last dimension: x is quantized that way, and weights
are stored that way (blockscale.core.layout). A graph has permutes around its convolution for it, so
no overload of aten is this op.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.layout import from_stored, grouped_layout
from blockscale.ops.fused.define import fused

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


@fused(ulps=64, wide=True, activation=True)
def conv(
    x: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    shape: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int = 1,
    transposed: bool = False,
    output_padding: tuple[int, ...] = (),
) -> Tensor:
    """x [batch, *size, c], a weight as stored [n, k], floats bias [n] -> [batch, *size, n].

    shape: the float weight's, [n, c / groups, *kernel], if transposed [c, n / groups, *kernel]
    output_padding: of transposed ones; () is none
    """
    offset = None if bias is None else bias.to(torch.float32)
    channels_first, count = x.movedim(-1, 1), len(shape) - 2
    if transposed:
        dense = from_stored(weight, grouped_layout(groups), shape)
        more = [*output_padding] or [0] * count
        run = _TRANSPOSED[count]
        y = run(channels_first, dense, offset, stride, padding, more, groups, dilation)
    else:
        dense = from_stored(weight, "channels_last", shape)
        y = _CONV[count](channels_first, dense, offset, stride, padding, dilation, groups)
    return y.movedim(1, -1)
