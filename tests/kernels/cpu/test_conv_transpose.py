# SPDX-License-Identifier: BSD-3-Clause
"""Transposed convolutions keep to the op's tolerance, through products and through torch's own."""

import gc
import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import blockscale as bs
from blockscale.core.operand import UNQUANTIZED
from blockscale.kernels.cpu import conv_transpose as kernel
from blockscale.ops.conv_transpose import conv_transpose
from blockscale.ops.op import OPS
from tests.support.set_aside import set_aside

# channels, outputs, kernel, stride, padding, output_padding, groups, bias, dilation; size
SHAPES = (
    ((16, 24, 3, 1, 1, 0, 1, True, 1), (9, 8)),
    ((32, 17, (3, 1), 2, (0, 0), 1, 1, False, 1), (6, 5)),
    ((32, 16, 2, 2, 0, 0, 1, True, 1), (5, 8)),  # no two places of x meet
    ((64, 40, 4, 2, 1, 0, 8, True, 1), (11,)),
    ((12, 12, 5, 3, 2, 2, 12, True, 1), (20,)),
    ((16, 6, (2, 3, 1), (1, 2, 2), 0, 0, 2, True, (2, 1, 1)), (3, 4, 3)),
    ((32, 6, (2, 3, 1), (1, 2, 2), (1, 0, 0), (0, 1, 1), 1, True, (2, 1, 1)), (3, 4, 3)),
    ((32, 5, 4, 2, 3, 1, 1, False, 3), (7, 5)),  # cut off deep, places far apart
    ((32, 8, 1, 3, 0, 2, 1, True, 1), (4, 5)),  # places that nothing reaches
)
WEIGHTS = (
    *("int8_channel", "int4:group32:fp32", "mxint8", "mxfp4", "uint4:group16:fp32:asym"),
    "uint4:group16:fp32:asym(fp16)",
)
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


@pytest.mark.some(40)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("channels", [1, 1000], ids=["products", "torch"])
def test_every_setting(shape: tuple, channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "_CHANNELS", channels)
    for i, (weight, given) in enumerate(itertools.product((*WEIGHTS, *MORE), INPUTS)):
        model = layer(shape, weight, given)
        dtype = (torch.float32, torch.bfloat16, torch.float16)[i % 3]
        check(model.to(dtype), torch.randn(3, shape[0][0], *shape[1]).to(dtype))


@pytest.mark.some(2)
@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
@pytest.mark.parametrize("given", ["int8", "uint8:tensor:fp32:asym"])
def test_given_scales_and_odd_batches(
    shape: tuple, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "_CHANNELS", 1)
    monkeypatch.setattr(kernel, "_PRODUCTS", 1)  # each image by itself
    model, x = layer(shape, "int8_channel", given), torch.randn(4, shape[0][0], *shape[1])
    check(model, x)
    zero_point = torch.full((1,), 120, dtype=torch.int32) if "asym" in given else None
    model[0].input.set_scale(torch.full((1,), 0.02), zero_point)
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
    with bs.use("cpu"), pytest.raises(ValueError, match="in 4 groups has rows of 64, found 32"):
        conv_transpose.run(x, weight, None, [64, 5, 4], *settings)
    with bs.use("cpu"), pytest.raises(TypeError, match="float64"):
        layer(SHAPES[3], "int8_channel", None)(x.double())


def whole(model: nn.Module) -> None:
    """Weights of whole numbers: with scales of powers of two no sum rounds, in any order."""
    for parameter in model.parameters():
        parameter.data = torch.randint(-4, 5, parameter.shape).float()


EXACT = ("int4:channel0:pow2/floor", "int4:group16:e8m0/floor", "uint4:tensor:pow2/floor:asym")
EXACT += ("ternary:token:pow2/nearest",)
SETTINGS = ({"stride": 2, "padding": 1, "output_padding": 1}, {"dilation": 2}, {"stride": 3})


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor | None]:
    """What integer arithmetic gave, call by call."""
    found: list[torch.Tensor | None] = []
    run = kernel._as_integers

    def spy(*arguments: Any) -> torch.Tensor | None:
        found.append(run(*arguments))
        return found[-1]

    monkeypatch.setattr(kernel, "_as_integers", spy)
    return found


@pytest.mark.some(3)
@pytest.mark.parametrize("fmt", EXACT)
@pytest.mark.parametrize("given", ["token", "tensor", "group16"])
def test_bits_are_the_references_where_no_sum_rounds(fmt: str, given: str, made) -> None:
    kinds = {nn.ConvTranspose1d: (7,), nn.ConvTranspose2d: (4, 5), nn.ConvTranspose3d: (2, 3, 2)}
    for (kind, size), settings in itertools.product(kinds.items(), SETTINGS):
        model, x = nn.Sequential(kind(32, 6, 3, **settings)), torch.randn(3, 32, *size)
        whole(model)
        bs.quantize_(model, bs.Recipe(fmt, f"int4:{given}:pow2/floor"))
        with bs.use("reference"), torch.no_grad():
            expected = model(x)
        with bs.use("cpu"), torch.no_grad():
            assert torch.equal(model(x), expected)
        assert made.pop() is not None


def test_which_are_products(made) -> None:
    """Blocks of a weight within the channels of one place, and codes that end where they end."""
    for channels, weight, given, more, expected in (
        (64, "int8_channel", "int8_token", {}, True),
        (64, "int8_channel", "int8", {}, True),
        (64, "int8_channel", "uint8:tensor:fp32:asym", {}, True),
        (64, "int8_channel", "int8:group32:fp32", {}, True),
        (64, "int4:group32:fp32", "int8_token", {}, True),
        (64, "int4:group64:fp32", "int8_token", {}, True),
        (48, "int4:group32:fp32", "int8_token", {}, False),  # a block that ends at no place's end
        (64, "int4:group128:fp32", "int8_token", {}, False),
        (64, "int4:flat32:fp32", "int8_token", {}, True),  # a row holds whole blocks
        (64, "int4:tile2x32:fp32", "int8_token", {}, False),
        (36, "int3:channel0:fp32", "int8_token", {}, False),  # 36 codes are 13.5 bytes
        (64, "int8_channel", "int8:channel-1:fp32", {}, False),
        (64, "int8_channel", "int8_token", {"kernel_size": 9}, False),  # 81 sums would be floats
        (64, "int8_channel", "int8_token", {"kernel_size": 9, "stride": 5}, True),
        (64, "int8_channel", "int8:token:fp32:stochastic", {}, False),
        (31, "int8_channel", "int8_token", {}, False),
    ):
        x = torch.randn(2, channels, 8, 8)
        model = nn.Sequential(nn.ConvTranspose2d(channels, 4, **{"kernel_size": 3, **more}))
        bs.quantize_(model, bs.Recipe(weight, given))
        model(x)
        assert (made.pop() is not None) == expected, (channels, weight, given)


@torch.no_grad()  # a graph would keep the weight
def test_a_weight_that_changes_and_one_that_is_gone() -> None:
    set_aside()
    kept = kernel.by_places(9)
    model, x = nn.Sequential(nn.ConvTranspose2d(32, 8, 3)), torch.randn(1, 32, 4, 4)
    bs.quantize_(model, bs.Recipe("int8_channel", "int8_token"))
    before, count = model(x), len(kept)
    model[0].weight.scale.mul_(2)
    bias = model[0].bias.detach()[:, None, None]
    torch.testing.assert_close(model(x) - bias, 2 * (before - bias), rtol=1e-5, atol=1e-5)
    model[0].weight.codes.zero_()
    assert torch.equal(model(x), bias.expand_as(before))
    assert len(kept) == count
    del model
    gc.collect()
    assert len(kept) == count - 1


def test_what_torch_refuses_is_refused() -> None:
    layer_ = nn.ConvTranspose2d(32, 8, 3, stride=2, padding=4)
    model = nn.Sequential(layer_)
    bs.quantize_(model, bs.Recipe("int8_channel", "int8_token"))
    weight = model[0].weight.operand
    by = model[0].of_input(torch.ones(1))
    x = torch.randn(1, 32, 3, 3)
    for padding, added in (([4, 4], [0, 0]), ([0, 0], [2, 0])):
        arguments = (x, weight, None, [32, 8, 3, 3], [2, 2], padding, added, [1, 1], 1, by)
        for backend in ("cpu", "reference"):
            with bs.use(backend), pytest.raises(RuntimeError):
                conv_transpose.run(*arguments)
