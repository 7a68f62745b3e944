# SPDX-License-Identifier: BSD-3-Clause
"""Quantized convolutions are their definition: a float convolution of dequantized parts."""

import copy

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.core.operand import UNQUANTIZED
from tests.support.op_samples import Made
from tests.support.ops_conv import CHANNELS, INPUTS, WEIGHTS, check, define, pair, same, whole
from tests.support.some import crossed


def samples(made: Made) -> dict[str, list[tuple]]:
    x, weight = made.x, made.packed
    settings = ([2], [1], [1], 1)
    return {
        "conv": [
            (x.reshape(5, 12, 3), weight, torch.randn(5), [5, 12, 3], *settings, made.own),
            (
                x.reshape(1, 3, 3, 4, 5)[:, :, :, :3], weight, None, [5, 3, 1, 3, 4],
                *([1, 1, 1],) * 3, 1, made.own,
            ),
            (
                x.reshape(1, 4, 9, 5)[:, :, :4], weight, None, [5, 4, 3, 3], *([1, 1],) * 3, 1,
                UNQUANTIZED,
            ),
        ]
    }  # fmt: skip


@pytest.fixture(autouse=True)
def reference():
    """Kernels may sum in another order; these tests are about the op's own bits."""
    with bs.use("reference"):
        yield


SETTINGS = [
    {},
    {"stride": 2},
    {"dilation": 2, "padding": 1},
    {"groups": 3, "bias": False},
    {"groups": CHANNELS},  # depthwise: one input channel for each output
    {"padding": "same"},
    {"padding": "same", "kernel_size": 4, "dilation": 3},  # an even kernel pads more on one side
    {"padding": "valid", "stride": 3},
    {"padding": 2, "padding_mode": "reflect"},
    {"padding": 1, "padding_mode": "replicate", "stride": 2},
    {"padding": "same", "padding_mode": "circular"},
    {"padding": 2, "padding_mode": "zeros", "dilation": 2, "stride": 2},
    {"kernel_size": 1, "padding": 1},
]


@pytest.mark.slow
@pytest.mark.some(8)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")  # torch's own
@pytest.mark.parametrize(
    ("kind", "settings"), crossed(3, [nn.Conv1d, nn.Conv2d, nn.Conv3d], SETTINGS), ids=str
)
def test_every_setting(kind, settings: dict) -> None:
    arguments = {"kernel_size": 3, **settings}
    if kind is nn.Conv3d and settings.get("padding_mode") == "reflect":
        arguments["padding"] = 1
    size = {nn.Conv1d: (11,), nn.Conv2d: (11, 13), nn.Conv3d: (7, 8, 7)}[kind]
    for weight, fmt in zip((*WEIGHTS, *WEIGHTS), INPUTS, strict=False):
        check(kind(CHANNELS, CHANNELS, **arguments), size, weight, fmt)


TUPLES = [
    {"kernel_size": (3, 1), "stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)},
    {"kernel_size": (1, 4), "padding": "same", "groups": 2},
    {"kernel_size": (2, 3), "padding": (0, 2), "padding_mode": "circular", "groups": 4},
]


@pytest.mark.slow
@pytest.mark.some(5)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("settings", TUPLES, ids=str)
def test_a_number_for_each_dimension(settings: dict) -> None:
    for fmt in INPUTS:
        check(nn.Conv2d(CHANNELS, 8, **settings), (9, 7), WEIGHTS[0], fmt)


@pytest.mark.some(3)
@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "uint4", "int8_channel", "binary", "uint16"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_catalogue_formats(name: str, dtype: torch.dtype) -> None:
    """The weights themselves, whose scales are no powers of two, and one cast at the end."""
    quantized, dense = pair(nn.Conv2d(CHANNELS, 8, 3, padding=1), name, None, dtype)
    x = torch.zeros(1, CHANNELS, 5, 5, dtype=dtype)
    x[0, 7, 2, 2] = 1  # one product for each output: nothing is summed but the bias
    quantized.bias.data.zero_()
    dense.bias.data.zero_()
    same(quantized(x), define(x, dense, None))
    assert quantized(x).abs().amax() > 0


def test_output_format_runs_over_channels_too() -> None:
    """An output's blocks lie as the next convolution's input's do."""
    model = nn.Sequential(nn.Conv2d(CHANNELS, CHANNELS, 3))
    fmt = "int4:group8:fp32"
    bs.quantize_(model, bs.Recipe(WEIGHTS[0], INPUTS[1], fmt))
    plain = copy.deepcopy(model[0])
    plain.output = None
    x = torch.randn(2, CHANNELS, 9, 9)
    same(model(x), bs.fake_quantize(plain(x).movedim(1, -1), fmt).movedim(-1, 1))


@pytest.mark.parametrize("fmt", INPUTS[3:])
def test_static_input(fmt: str) -> None:
    """`channel-1` counts channels; batched or not, one given scale."""
    quantized, dense = pair(nn.Conv2d(CHANNELS, 8, 3, padding=1), WEIGHTS[0], fmt)
    seen = torch.randn(2, CHANNELS, 5, 5)
    scale = bs.choose_qparams(seen.movedim(1, -1), fmt)
    quantized.input.set_scale(*scale)
    x = (seen * 2).requires_grad_()
    y, expected = quantized(x), define(x, dense, fmt, scale)
    same(y, expected)
    same(quantized(x[0]), expected[0])
    gradient = whole(*y.shape)
    same(*(torch.autograd.grad(each, x, gradient)[0] for each in (y, expected)))


def test_stochastic_inputs_run_over_channels_too() -> None:
    fmt = "int4:channel-1:pow2/floor:stochastic"
    quantized, dense = pair(nn.Conv2d(CHANNELS, 8, 3), WEIGHTS[0], fmt)
    x = torch.randn(2, CHANNELS, 5, 5)
    torch.manual_seed(3)
    y = quantized(x)
    torch.manual_seed(3)
    same(y, define(x, dense, fmt))
    quantized.input.set_scale(bs.choose_qparams(x.movedim(1, -1), fmt)[0])
    torch.manual_seed(3)
    same(quantized(x), y)


def test_autocast_does_not_reach_inside() -> None:
    quantized, _ = pair(nn.Conv2d(CHANNELS, 8, 3), "int8_channel")
    x = torch.randn(2, CHANNELS, 5, 5)
    expected = quantized(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        same(quantized(x), expected)


@pytest.mark.slow
def test_compile_and_export() -> None:
    two = nn.Conv2d(CHANNELS, 8, 3, padding=1, padding_mode="reflect")
    for conv, size in ((nn.Conv1d(CHANNELS, 8, 3, padding="same"), (9,)), (two, (9, 7))):
        torch._dynamo.reset()
        quantized, _ = pair(conv, WEIGHTS[0], INPUTS[2])
        run = torch.compile(quantized, fullgraph=True, backend="aot_eager", dynamic=True)
        batch, x = torch.export.Dim("batch", min=2, max=9), torch.randn(4, CHANNELS, *size)
        program = torch.export.export(quantized, (x,), dynamic_shapes=({0: batch},))
        for count in (4, 2, 7):
            x = torch.randn(count, CHANNELS, *size)
            same(run(x), quantized(x))
            same(program.module()(x), quantized(x))


def test_messages() -> None:
    quantized, _ = pair(nn.Conv2d(CHANNELS, 8, 3), WEIGHTS[0])
    words = r"expected an input \[batch, 12, h, w\], found \(1, 2, 11, 5, 5\)"
    with pytest.raises(ValueError, match=words):
        quantized(torch.randn(1, 2, 11, 5, 5))
    with pytest.raises(ValueError, match=r"expected an input \[batch, 12, h, w\], found \(2, 11,"):
        quantized(torch.randn(2, 11, 5, 5))
    with pytest.raises(TypeError, match="found float64"):
        quantized(torch.randn(2, CHANNELS, 5, 5, dtype=torch.float64))
