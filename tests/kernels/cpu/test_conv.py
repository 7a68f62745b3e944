# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions keep to the op's tolerance, whichever way they run."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import blockscale as bs
from blockscale.core.operand import Quantizer, operand
from blockscale.core.parse import parse
from blockscale.kernels.cpu.conv_way import ConvWay
from blockscale.ops import primitives as P
from blockscale.ops.conv import conv
from blockscale.ops.op import OPS
from tests.support.cpu_conv import always
from tests.support.some import crossed

# channels, outputs, kernel, stride, padding, dilation, groups, size
SHAPES = (
    *((16, 24, 3, 1, 1, 1, 1, (9, 8)), (32, 17, (3, 1), 2, (0, 1), 1, 1, (11, 8))),
    *((48, 33, 5, (1, 3), 2, 1, 1, (10, 7)), (32, 32, 3, 1, 0, 2, 1, (12, 12))),
    *(
        (32, 32, 3, 1, 1, 1, 4, (8, 8)),
        (64, 40, 1, 1, 0, 1, 1, (15,)),
        (7, 5, 2, 3, 1, 1, 1, (20,)),
    ),
    (32, 8, 9, 1, 4, 1, 1, (5,)),
    *((3, 40, 7, 2, 3, 1, 1, (17, 40)), (36, 36, 3, 1, 1, 1, 36, (5, 33))),
    *((20, 40, 5, (2, 1), 2, (1, 2), 20, (9, 8)), (36, 24, 3, 2, 0, 1, 12, (31,))),
    *((16, 24, (3, 1, 2), (1, 2, 1), (1, 0, 2), 1, 1, (4, 5, 6)), (8, 6, 2, 1, 0, 2, 2, (4, 5, 3))),
)
WEIGHTS = (
    *("int8_channel", "int4:group32:fp32", "mxint8", "mxfp4", "uint4:group16:fp32:asym"),
    "uint4:group16:fp32:asym(fp16)",
)
MORE = ("nf4:group16:fp32", "log8f3:token:fp32")
INPUTS = (
    *(None, "int8", "int8_token", "mxint8", "int8:group16:fp32", "uint8", "mxfp8"),
    *(
        "uint8:token:fp32:asym",
        "uint8:tensor:fp32:asym(fp32)",
        "uint4:group8:fp32:asym",
        "int3:tensor:fp32:asym",
        "uint8:token:fp32",
    ),
)


def layer(shape: tuple, weight: str, given: str | None) -> nn.Module:
    *arguments, size = shape
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[len(size) - 1]
    model = nn.Sequential(kind(*arguments))
    bs.quantize_(model, bs.Recipe(weight, given))
    return model


def check(model: nn.Module, x: torch.Tensor) -> None:
    """Within the tolerance, which the same layer with |x|, |weight| and |bias| says."""
    q = model[0]
    with bs.use("reference"), torch.no_grad():
        expected = model(x)
        values = x.float() if q.input is None else q.input(x.float().movedim(1, -1)).movedim(-1, 1)
        run = (F.conv1d, F.conv2d, F.conv3d)[x.ndim - 3]
        dense = q.dequantize_weight(torch.float32).abs()
        settings = (q.stride, q.padding, q.dilation, q.groups)
        size = run(values.abs(), dense, q.bias.float().abs(), *settings)
    with bs.use("cpu"):
        y = model(x)
    assert (y.dtype, y.shape, y.stride()) == (x.dtype, expected.shape, expected.stride())
    rounding = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}[x.dtype]
    bound = 2 * OPS["conv"].ulps * 2.0**-24 * size + rounding * size
    assert ((y.double() - expected.double()).abs() <= bound).all()


@pytest.mark.some(40)
@pytest.mark.parametrize(("shape", "chosen"), crossed(3, SHAPES, [*ConvWay]), ids=str)
def test_every_setting(shape: tuple, chosen: ConvWay, monkeypatch: pytest.MonkeyPatch) -> None:
    always(monkeypatch, chosen)
    for i, (weight, given) in enumerate(itertools.product((*WEIGHTS, *MORE), INPUTS)):
        model = layer(shape, weight, given)
        dtype = (torch.float32, torch.bfloat16, torch.float16)[i % 3]
        x = torch.randn(3, shape[0], *shape[-1]).to(dtype)
        check(model.to(dtype), x)
        if i % 4 == 0:
            check(model, x.movedim(1, -1).contiguous().movedim(-1, 1))


def test_given_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    always(monkeypatch)
    model, x = (
        layer((16, 24, 3, 2, 1, 1, 1, (9, 8)), "int8_channel", "int8"),
        torch.randn(5, 16, 9, 8),
    )
    check(model, x)
    model[0].input.set_scale(torch.full((1,), 0.02))
    check(model, x)
    check(model, x.contiguous(memory_format=torch.channels_last))
    check(model, x[:0])
    check(model, x[:, :, :1])


@pytest.mark.parametrize("input_fmt", ["", "int8:tensor:fp32", "int8:token:fp32"])
def test_weights_with_offsets(input_fmt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Integer arithmetic gives way, whatever x is."""
    always(monkeypatch)
    fmt, shape = "uint4:group16:fp16:offset", [20, 8, 3]
    with bs.use("reference"):
        packed, *parts = P.choose_quantize(torch.randn(20, 24), fmt, None)
        weight = operand(packed, P.from_list(parts, parse(fmt)), fmt, 24)
    arguments = torch.randn(2, 8, 11), weight, torch.randn(20), shape, [1], [1], [1], 1
    given = Quantizer(None, None, None, input_fmt)
    with bs.use("reference"):
        expected = conv(*arguments, given)
    with bs.use("cpu"):
        y = conv(*arguments, given)
    assert (y - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("given", [None, "int8_token"])
def test_autocast_does_not_reach_inside(given: str | None) -> None:
    """Nor torch's own convolution of the decoded weight."""
    model, x = (
        layer((16, 24, 3, 1, 1, 1, 1, (9, 8)), "int8_channel", given),
        torch.randn(2, 16, 9, 8),
    )
    expected = model(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(model(x), expected)
