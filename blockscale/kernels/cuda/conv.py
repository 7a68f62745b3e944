"""Convolutions: the library's, of a weight and an input that kernels have brought to float32."""

from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.layout import from_stored
from blockscale.core.precision import float32_inside
from blockscale.kernels.cuda.choose_qparams import every
from blockscale.kernels.cuda.dequantize import dequantize
from blockscale.kernels.cuda.fake_quantize import fake_quantize
from blockscale.kernels.cuda.primitives.form import floats
from blockscale.kernels.registry import kernel

_CONV = {1: F.conv1d, 2: F.conv2d}
Sizes = list[int]


@kernel("conv", backend="cuda", supports=every)
def conv(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    outer: Tensor | None,
    bias: Tensor | None,
    fmt: str,
    shape: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
    input_scale: Tensor | None,
    input_zero_point: Tensor | None,
    input_outer: Tensor | None,
    input_fmt: str,
    input_seed: Tensor | None = None,
) -> Tensor:
    """As ops.conv.conv."""
    stored = dequantize(weight, scale, zero_point, outer, fmt, prod(shape[1:]), torch.float32)
    dense = from_stored(stored, "channels_last", shape)
    floats(x)  # refuses what the reference refuses
    values = x.to(torch.float32)
    if input_fmt:
        given = (input_scale, input_zero_point, input_outer)
        quantized = fake_quantize(values.movedim(1, -1), *given, input_fmt, input_seed)
        values = quantized.movedim(-1, 1)
    offset = None if bias is None else bias.to(torch.float32)
    with float32_inside(x):
        run = _CONV[len(shape) - 2]
        y = run(values, dense, offset, stride, padding, dilation, groups)
    return y.to(x.dtype).contiguous()
