# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions: the library's, of a weight and an input that kernels have brought to float32."""

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.arithmetic.precision import float32_inside
from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer
from blockscale.core.pack import from_stored
from blockscale.kernels.cuda.dequantize import dequantize
from blockscale.kernels.cuda.fake_quantize import fake_quantize
from blockscale.kernels.cuda.primitives.form import floats
from blockscale.kernels.cuda.spec import known
from blockscale.kernels.registry import kernel

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
Sizes = list[int]


@kernel("conv", backend="cuda", supports=known)
def conv(
    x: Tensor,
    weight: Operand,
    bias: Tensor | None,
    shape: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
    input: Quantizer = UNQUANTIZED,
) -> Tensor:
    """As ops.conv.conv."""
    dense = from_stored(dequantize(weight, torch.float32), "channels_last", shape)
    floats(x)  # refuses what the reference refuses
    values = x.to(torch.float32)
    if input.fmt:
        quantized = fake_quantize(values.movedim(1, -1), input)
        values = quantized.movedim(-1, 1)
    offset = None if bias is None else bias.to(torch.float32)
    with float32_inside(x):
        run = _CONV[len(shape) - 2]
        y = run(values, dense, offset, stride, padding, dilation, groups)
    return y.to(x.dtype).contiguous()
