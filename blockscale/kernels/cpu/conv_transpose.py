"""Transposed convolutions: torch's, of a weight and an input that kernels brought to float32."""

from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.arithmetic.precision import float32_inside
from blockscale.core.layout import from_stored, grouped_layout
from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer
from blockscale.kernels.cpu.dequantize import dequantize
from blockscale.kernels.cpu.fake_quantize import fake_quantize
from blockscale.kernels.cpu.native import floats, known
from blockscale.kernels.registry import kernel

_RUN = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}

Sizes = list[int]


@kernel("conv_transpose", backend="cpu", supports=known)
def conv_transpose(
    x: Tensor,
    weight: Operand,
    bias: Tensor | None,
    shape: Sizes,
    stride: Sizes,
    padding: Sizes,
    output_padding: Sizes,
    dilation: Sizes,
    groups: int,
    input: Quantizer = UNQUANTIZED,
) -> Tensor:
    """As ops.conv_transpose.conv_transpose."""
    row = prod(shape[2:]) * (shape[0] // groups)
    if row != weight.size:
        raise ValueError(
            f"a weight of shape {shape} in {groups} groups has rows of {row}, not {weight.size}"
        )
    dense = from_stored(dequantize(weight, torch.float32), grouped_layout(groups), shape)
    values = x.to(torch.float32)
    if input.fmt:
        values = fake_quantize(values.movedim(1, -1), input).movedim(-1, 1)
    else:
        floats(x)  # refuses what the reference refuses
    offset = None if bias is None else bias.to(torch.float32)
    settings = stride, padding, output_padding, groups, dilation
    with float32_inside(x):
        y = _RUN[len(shape) - 2](values, dense, offset, *settings)
    return y.to(x.dtype).contiguous()
