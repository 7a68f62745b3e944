# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with
tests/ops/test_conv.py: `CHANNELS`, `check`, `define`, ….
"""

import copy

import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.core.pack import from_stored, to_stored
from blockscale.layers.kinds import quantized_class

CHANNELS = 12


# Powers of two for scales and whole numbers for gradients: no sum rounds, in any order, so that
# bits are equal whatever kernel torch picks for the memory format at hand.
WEIGHTS = ("int4:group8:e8m0/floor", "e2m1:channel0:pow2/ceil", "ternary:tensor:pow2/nearest")


INPUTS = (
    None,
    "int4:token:pow2/floor",  # a scale for each position
    "e2m1:group8:e8m0/floor",  # along the channels, the last block partial
    "uint4:tensor:pow2/floor:asym",
    "int4:channel-1:pow2/floor",  # a scale for each channel
)


def whole(*shape: int) -> Tensor:
    return torch.randint(-4, 5, shape).float()


def same(a: Tensor, b: Tensor) -> None:
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    torch.testing.assert_close(a, b, rtol=0, atol=0)


def pair(conv: nn.Module, weight: str, fmt: str | None = None, dtype=torch.float32):
    """A quantized convolution, and the float one with the weight that its codes mean."""
    if conv.bias is not None:
        conv.bias.data = whole(*conv.bias.shape)
    conv = conv.to(dtype)
    layout = quantized_class(conv).layout_of(conv)
    q = bs.quantize(to_stored(conv.weight, layout), weight)
    dense = copy.deepcopy(conv).float()
    dense.weight.data = from_stored(q.dequantize(), layout, conv.weight.shape)
    model = nn.Sequential(conv)
    bs.quantize_(model, bs.Recipe(weight, fmt))
    same(model[0].dequantize_weight(torch.float32), dense.weight.data.contiguous())
    return model[0], dense


def define(x: Tensor, dense: nn.Module, fmt: str | None, scale=()) -> Tensor:
    """Blocks run over channels: x is quantized with its channels last (TOSA 1.1)."""
    values = x.float()
    if fmt is not None:
        at = x.ndim - len(dense.kernel_size) - 1
        values = bs.fake_quantize(values.movedim(at, -1), fmt, *scale).movedim(-1, at)
    return dense(values).to(x.dtype)


def check(conv: nn.Module, size: tuple[int, ...], weight: str, fmt: str | None) -> None:
    """Values and gradients, batched, unbatched, in another memory format, of an empty batch."""
    quantized, dense = pair(conv, weight, fmt)
    for batch in ((2,), (), (0,)):
        shape = (*batch, conv.in_channels, *size)
        x = torch.randn(shape) if fmt else whole(*shape)
        if batch == (2,) and len(size) == 2:
            same(quantized(x.to(memory_format=torch.channels_last)), quantized(x))
        x.requires_grad_()
        y, expected = quantized(x), define(x, dense, fmt)
        same(y, expected)
        gradient = whole(*y.shape)
        found = torch.autograd.grad(y, [x, *quantized.parameters()], gradient)
        wanted = [x] if dense.bias is None else [x, dense.bias]
        for a, b in zip(found, torch.autograd.grad(expected, wanted, gradient), strict=True):
            same(a, b)
