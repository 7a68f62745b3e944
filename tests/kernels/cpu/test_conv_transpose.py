"""Transposed convolutions keep to the op's tolerance."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import blockscale as bs
from blockscale.core.operand import UNQUANTIZED
from blockscale.ops.conv_transpose import conv_transpose
from blockscale.ops.op import OPS

# channels, outputs, kernel, stride, padding, output_padding, groups, bias, dilation; size
SHAPES = (
    ((16, 24, 3, 1, 1, 0, 1, True, 1), (9, 8)),
    ((32, 17, (3, 1), 2, (0, 0), 1, 1, False, 1), (6, 5)),
    ((32, 16, 2, 2, 0, 0, 1, True, 1), (5, 8)),  # no two places of x meet
    ((64, 40, 4, 2, 1, 0, 8, True, 1), (11,)),
    ((12, 12, 5, 3, 2, 2, 12, True, 1), (20,)),
    ((16, 6, (2, 3, 1), (1, 2, 2), 0, 0, 2, True, (2, 1, 1)), (3, 4, 3)),
)
WEIGHTS = ("int8_channel", "int4:group32:fp32", "mxint8", "mxfp4", "uint4:group16:fp32:asym")
MORE = ("nf4:group16:fp32", "log8f3:token:fp32")
INPUTS = (None, "int8", "int8_token", "mxint8", "int8:group16:fp32", "uint8", "mxfp8")


def layer(shape: tuple, weight: str, given: str | None) -> nn.Module:
    arguments, size = shape
    kind = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[len(size) - 1]
    model = nn.Sequential(kind(*arguments))
    bs.quantize_(model, bs.Recipe(weight, given))
    return model


def check(model: nn.Module, x: torch.Tensor) -> None:
    """Within the tolerance, which the same layer with |x|, |weight| and |bias| says."""
    q = model[0]
    with bs.use("reference"), torch.no_grad():
        expected = model(x)
        values = x.float() if q.input is None else q.input(x.float().movedim(1, -1)).movedim(-1, 1)
        run = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[x.ndim - 3]
        dense = q.dequantize_weight(torch.float32).abs()
        settings = (q.stride, q.padding, q.output_padding, q.groups, q.dilation)
        bias = None if q.bias is None else q.bias.float().abs()
        size = run(values.abs(), dense, bias, *settings)
    with bs.use("cpu"):
        y = model(x)
    assert (y.dtype, y.shape, y.stride()) == (x.dtype, expected.shape, expected.stride())
    rounding = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}[x.dtype]
    bound = 2 * OPS["conv_transpose"].ulps * 2.0**-24 * size + rounding * size
    assert ((y.double() - expected.double()).abs() <= bound).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_setting(shape: tuple) -> None:
    for i, (weight, given) in enumerate(itertools.product((*WEIGHTS, *MORE), INPUTS)):
        model = layer(shape, weight, given)
        dtype = (torch.float32, torch.bfloat16, torch.float16)[i % 3]
        check(model.to(dtype), torch.randn(3, shape[0][0], *shape[1]).to(dtype))


@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_given_scales_and_odd_batches(shape: tuple) -> None:
    model, x = layer(shape, "int8_channel", "int8"), torch.randn(4, shape[0][0], *shape[1])
    check(model, x)
    model[0].input.set_scale(torch.full((1,), 0.02))
    check(model, x)
    check(model, x.contiguous(memory_format=torch.channels_last))
    check(model, x[:0])
    check(model, x[:, :, :1])


@pytest.mark.parametrize("given", [None, "int8_token"])
def test_autocast_does_not_reach_inside(given: str | None) -> None:
    model, x = layer(SHAPES[0], "int8_channel", given), torch.randn(2, 16, 9, 8)
    expected = model(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(model(x), expected)


def test_what_does_not_fit_is_refused() -> None:
    weight = layer(SHAPES[3], "int8_channel", None)[0].weight.operand
    settings = ([1], [0], [0], [1], 4, UNQUANTIZED)
    x = torch.randn(1, 64, 9)
    with bs.use("cpu"), pytest.raises(ValueError, match="in 4 groups has rows of 64, not 32"):
        conv_transpose.run(x, weight, None, [64, 5, 4], *settings)
    with bs.use("cpu"), pytest.raises(TypeError, match="float64"):
        layer(SHAPES[3], "int8_channel", None)(x.double())
