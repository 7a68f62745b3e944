"""Convolutions: patches of x as the rows of an integer linear layer, else torch's in float32."""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.arithmetic.precision import float32_inside
from blockscale.core.layout import from_stored
from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer, Value
from blockscale.kernels.cpu import _native
from blockscale.kernels.cpu.dequantize import dequantize
from blockscale.kernels.cpu.fake_quantize import fake_quantize
from blockscale.kernels.cpu.fused_linear import Result, from_codes, given_parts
from blockscale.kernels.cpu.linear import float_bias, row_block
from blockscale.kernels.cpu.native import floats, known, native, threads
from blockscale.kernels.cpu.prepack import prepared
from blockscale.kernels.cpu.quantize import choose_quantize, quantize
from blockscale.kernels.registry import kernel

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
# With fewer, copying the patches costs more than their products save (measured). Without vpdpbusd
# that is so earlier where pixels have scales of their own, which end sums.
_OUTPUTS, _CHANNELS = 32, 32
_OUTPUTS_OF_BLOCKS = 128

Sizes = list[int]


class Window(NamedTuple):
    """Patches of codes.

    numbers: as `window` of src/bind_linear.cpp takes them; shape: of the result, channels last
    block:   codes of a pixel that share a scale; 0: one for all of x
    """

    numbers: list[int]
    block: int
    shape: tuple[int, ...]


@kernel("conv", backend="cpu", supports=known)
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
    check_weight(weight, shape)
    if input.fmt and groups == 1:
        y = _as_integers(x, weight, bias, shape, (stride, padding, dilation), input)
        if y is not None:
            return y
    dense = from_stored(dequantize(weight, torch.float32), "channels_last", shape)
    values = x.to(torch.float32)
    if input.fmt:
        quantized = fake_quantize(values.movedim(1, -1), input)
        values = quantized.movedim(-1, 1)
    else:
        floats(x)  # refuses what the reference refuses
    offset = None if bias is None else bias.to(torch.float32)
    with float32_inside(x):
        y = CONV[len(shape) - 2](values, dense, offset, stride, padding, dilation, groups)
    return y.to(x.dtype).contiguous()


def check_weight(weight: Operand, shape: Sizes) -> None:
    """Raise ValueError if the codes of a weight are not those of this shape."""
    rows, size = weight.codes.shape[0], prod(shape[1:])
    if size != weight.size:
        raise ValueError(f"a weight of shape {shape} has rows of {size}, not {weight.size}")
    if rows != shape[0]:
        raise ValueError(f"a weight of shape {shape} has {shape[0]} rows, not {rows}")


def _as_integers(
    x: Tensor,
    weight: Operand,
    bias: Tensor | None,
    shape: Sizes,
    settings: tuple[Sizes, Sizes, Sizes],
    by: Quantizer,
) -> Tensor | None:
    """The convolution by integer arithmetic, or None where that cannot give it or does not pay."""
    if x.ndim != len(shape) or x.shape[1] != shape[1] or by.format.rounding == "stochastic":
        return None
    if by.scale is not None and row_block(by.fmt, x.ndim) != 0:
        return None
    last = x.movedim(1, -1)
    if window(last.shape, shape, settings, by.fmt) is None:
        return None
    if by.scale is None:
        codes, *parts = choose_quantize(last, by.fmt, None)
        scale, zero_point = parts[0], parts[1] if len(parts) > 1 else None
    else:
        codes, scale, zero_point = quantize(last, by), by.scale, by.zero_point
    value = Value(codes, scale, zero_point, None, by.fmt, shape[1])
    offset = None if bias is None else float_bias(bias, shape[0])
    plain = Result(offset, "", x.dtype, UNQUANTIZED)
    made = of_codes(value, weight, shape, settings, plain)
    return None if made is None else made[0].movedim(-1, 1).contiguous()


def window(
    x: Sequence[int],
    shape: Sizes,
    settings: tuple[Sizes, Sizes, Sizes],
    fmt: str,
    always: bool = False,
) -> Window | None:
    """How patches of codes x [batch, *size, channels] become rows of an integer linear layer.

    None where that cannot be or, unless always, does not pay.
    """
    stride, padding, dilation = settings
    channels, kernel_size = shape[1], shape[2:]
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel_size, strict=True)]
    out = [
        (n + 2 * p - span) // s + 1
        for n, p, span, s in zip(x[1:-1], padding, spans, stride, strict=True)
    ]
    block = row_block(fmt, len(x))
    if min(x[0], *out) <= 0 or block is None:
        return None
    if not always and not _pays(shape[0], channels, block):
        return None
    if block and channels % min(block, channels):
        return None  # a last block that is partial at every place of the kernel
    numbers = [*kernel_size, *x[1:-1], *out, *stride, *padding, *dilation, channels]
    return Window(numbers, min(block, channels), (x[0], *out, shape[0]))


def _pays(outputs: int, channels: int, block: int) -> bool:
    slow = block and _native.isa() not in ("avx512vnni", "amx")
    return channels >= _CHANNELS and outputs >= (_OUTPUTS_OF_BLOCKS if slow else _OUTPUTS)


def of_codes(
    x: Value, weight: Operand, shape: Sizes, settings: tuple[Sizes, Sizes, Sizes], result: Result
) -> list[Tensor] | None:
    """The product of patches of codes x [batch, *size, channels] and the weight, channels last.

    None where integer arithmetic cannot give it or does not pay.
    """
    size = (*x.data.shape[:-1], x.size)
    places = window(size, shape, settings, x.fmt)
    if places is None:
        return None
    form = native(x.fmt)
    codes, parts = form.checked_codes(x.data, size), given_parts(form, size, x)
    if form.bits < 8:  # a byte each, so that patches begin on one
        packed, codes = codes, form.new_patterns(size)
        rows = codes.numel() // x.size
        _native.unpack(form.bits, packed.data_ptr(), rows, x.size, codes.data_ptr(), threads())
    return from_codes(
        prepared(weight), codes, parts, form, places.block, places.numbers, places.shape, result
    )
