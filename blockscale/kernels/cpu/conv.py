"""Convolutions: patches of x as the rows of an integer linear layer, else torch's in float32."""

from collections.abc import Iterator
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.arithmetic.precision import float32_inside
from blockscale.core.layout import from_stored
from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer
from blockscale.kernels.cpu.choose_qparams import choose_qparams
from blockscale.kernels.cpu.dequantize import dequantize
from blockscale.kernels.cpu.fake_quantize import fake_quantize
from blockscale.kernels.cpu.linear import as_integers, float_bias, row_block
from blockscale.kernels.cpu.native import floats, known, native
from blockscale.kernels.cpu.prepack import prepared
from blockscale.kernels.registry import kernel

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_PATCHES = 16 << 20  # bytes of patches at a time
_OUTPUTS = 128  # with fewer, copying the patches costs more than their products save (measured)

Sizes = list[int]


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
    if prod(shape[1:]) != weight.size:
        raise ValueError(
            f"a weight of shape {shape} has rows of {prod(shape[1:])}, not {weight.size}"
        )
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
        y = _CONV[len(shape) - 2](values, dense, offset, stride, padding, dilation, groups)
    return y.to(x.dtype).contiguous()


def _as_integers(
    x: Tensor,
    weight: Operand,
    bias: Tensor | None,
    shape: Sizes,
    settings: tuple[Sizes, Sizes, Sizes],
    by: Quantizer,
) -> Tensor | None:
    """The convolution by integer arithmetic, or None where that cannot give it or does not pay."""
    stride, padding, dilation = settings
    channels, kernel_size = shape[1], shape[2:]
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel_size, strict=True)]
    if x.ndim != len(shape) or x.shape[1] != channels:
        return None
    sizes = [
        (n + 2 * p - span) // s + 1
        for n, p, span, s in zip(x.shape[2:], padding, spans, stride, strict=True)
    ]
    block = row_block(by.fmt, x.ndim)
    if min(x.shape[0], *sizes) <= 0 or block is None or shape[0] < _OUTPUTS:
        return None
    if block and channels % min(block, channels):
        return None  # a last block that is partial at every place of the kernel
    x, _ = floats(x.movedim(1, -1))
    if block == 0:
        scale = choose_qparams(x, by.fmt)[0] if by.scale is None else by.scale
        scale = native(by.fmt).checked_parts(x.shape, scale, by.zero_point, by.outer).scale
        by = Quantizer(scale.reshape(1, 1, 1), None, None, by.fmt)
    ready = prepared(weight)
    offset = None if bias is None else float_bias(bias, shape[0])
    y = torch.empty((x.shape[0], prod(sizes), shape[0]), dtype=x.dtype)
    at = 0
    for patches in _patches(x, sizes, kernel_size, settings):
        part = y[at : at + patches.shape[0]]
        at += patches.shape[0]
        if not as_integers(ready, patches, min(block, channels), by, offset, part):
            return None
    return y.movedim(-1, 1).reshape(x.shape[0], shape[0], *sizes).contiguous()


def _patches(
    x: Tensor, sizes: Sizes, kernel_size: Sizes, settings: tuple[Sizes, Sizes, Sizes]
) -> Iterator[Tensor]:
    """x [batch, *size, channels] -> [some of the batch, places, kernel * channels], in turn."""
    stride, padding, dilation = settings
    edges = [edge for p in reversed(padding) for edge in (p, p)]
    x = F.pad(x, (0, 0, *edges)) if any(padding) else x
    batch, channels, dims = x.shape[0], x.shape[-1], len(sizes)
    steps = [x.stride(1 + i) for i in range(dims)]
    strides = (
        x.stride(0),
        *(step * s for step, s in zip(steps, stride, strict=True)),
        *(step * d for step, d in zip(steps, dilation, strict=True)),
        x.stride(-1),
    )
    view = x.as_strided((batch, *sizes, *kernel_size, channels), strides)
    depth = prod(kernel_size) * channels
    together = max(1, _PATCHES // (prod(sizes) * depth * x.itemsize))
    for part in view.split(together):
        yield part.reshape(part.shape[0], prod(sizes), depth).contiguous()
