"""Convolutions of codes, channels last, and what follows them: bias, activation, codes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from blockscale.core.arithmetic.precision import float32_inside
from blockscale.core.format import Format
from blockscale.core.layout import from_stored
from blockscale.core.operand import Operand, Quantizer, Value
from blockscale.kernels.cpu.conv import CONV, Sizes, check_weight, of_codes, window
from blockscale.kernels.cpu.dequantize import dequantize
from blockscale.kernels.cpu.fused_linear import Result, finished, takes
from blockscale.kernels.cpu.linear import float_bias
from blockscale.kernels.cpu.native import known
from blockscale.kernels.registry import kernel


def _supports(formats: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    """Patches of codes, where they pay; what the op is composed of does the others as well."""
    x, weight, _, shape, stride, padding, dilation, groups, transposed, _, activation, dtype, _ = (
        arguments
    )
    if transposed or groups != 1 or not x.fmt or not takes(x, weight, activation, dtype):
        return False
    size = (*x.data.shape[:-1], x.size)
    if len(size) != len(shape) or x.size != shape[1] or not known(formats, arguments):
        return False
    return window(size, shape, (stride, padding, dilation), x.fmt) is not None


@kernel("fused_conv", backend="cpu", supports=_supports)
def fused_conv(
    x: Value,
    weight: Value,
    bias: Tensor | None,
    shape: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
    transposed: bool,
    output_padding: Sequence[int],
    activation: str,
    dtype: torch.dtype,
    y: Quantizer,
) -> list[Tensor]:
    """As ops.fused.products.conv."""
    del groups, transposed, output_padding  # `_supports` has said what they are
    whole, settings = weight.operand, (stride, padding, dilation)
    check_weight(whole, shape)
    offset = None if bias is None else float_bias(bias, shape[0])
    result = Result(offset, activation, dtype, y)
    made = of_codes(x, whole, shape, settings, result)
    return _by_torch(x.operand, whole, shape, settings, result) if made is None else made


def _by_torch(
    x: Operand,
    weight: Operand,
    shape: Sizes,
    settings: tuple[Sizes, Sizes, Sizes],
    result: Result,
) -> list[Tensor]:
    """In float32, where a scale or a zero point is out of the range of integer arithmetic."""
    values = dequantize(x, torch.float32).movedim(-1, 1)
    dense = from_stored(dequantize(weight, torch.float32), "channels_last", shape)
    with float32_inside(values):
        y = CONV[len(shape) - 2](values, dense, result.bias, *settings)
    return finished(y.movedim(1, -1).contiguous().to(result.dtype), result)
