# SPDX-License-Identifier: BSD-3-Clause
"""Quantized transposed convolutions are their definition, in torch's own float ones."""

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.core.operand import UNQUANTIZED
from blockscale.ops.conv_transpose import row_size
from tests.support.op_samples import Made
from tests.support.ops_conv import CHANNELS, INPUTS, WEIGHTS, check, define, pair, same, whole
from tests.support.some import crossed

KINDS = {
    nn.ConvTranspose1d: (11,),
    nn.ConvTranspose2d: (5, 7),
    nn.ConvTranspose3d: (3, 4, 3),
}


def samples(made: Made) -> dict[str, list[tuple]]:
    """In one group, in five of four channels each, and over three dimensions."""
    x, weight = made.x, made.packed
    one = ([2], [1], [1], [1], 1)
    five = ([1, 1], [0, 0], [0, 0], [1, 2], 5)
    return {
        "conv_transpose": [
            (x.reshape(5, 12, 3), weight, torch.randn(5), [12, 5, 3], *one, made.own),
            (x.reshape(1, 20, 3, 3), weight, None, [20, 1, 3, 3], *five, UNQUANTIZED),
            (
                x.reshape(1, 3, 3, 4, 5)[:, :, :, :3], weight, None, [3, 5, 1, 3, 4],
                *([1, 1, 1], [0, 1, 1], [0, 0, 0], [1, 1, 1]), 1, made.own,
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
    {"stride": 2, "padding": 1, "output_padding": 1},
    {"stride": 3, "output_padding": 2, "groups": 2},
    {"kernel_size": 2, "stride": 2},  # no two places of x meet
    {"dilation": 2, "padding": 1},
    {"dilation": 3, "output_padding": 2, "bias": False},  # of a dilation, without a stride
    {"groups": 3, "bias": False},
    {"groups": CHANNELS, "padding": 2},  # depthwise, and cut off at its ends
    {"kernel_size": 1, "stride": 2},
]


@pytest.mark.slow
@pytest.mark.some(6)
@pytest.mark.parametrize(("kind", "settings"), crossed(3, KINDS, SETTINGS), ids=str)
def test_every_setting(kind, settings: dict) -> None:
    arguments = {"kernel_size": 3, **settings}
    for weight, fmt in zip((*WEIGHTS, *WEIGHTS), INPUTS, strict=False):
        check(kind(CHANNELS, CHANNELS, **arguments), KINDS[kind], weight, fmt)


TUPLES = [
    {"kernel_size": (3, 1), "stride": (2, 1), "padding": (1, 0), "output_padding": (1, 0)},
    {"kernel_size": (1, 4), "stride": (1, 3), "dilation": (2, 1), "groups": 2},
    {"kernel_size": (2, 3), "padding": (0, 2), "groups": 4, "bias": False},
]


@pytest.mark.slow
@pytest.mark.some(5)
@pytest.mark.parametrize("settings", TUPLES, ids=str)
def test_a_number_for_each_dimension(settings: dict) -> None:
    """And other numbers of outputs than of inputs, in groups, both ways."""
    for fmt in INPUTS:
        check(nn.ConvTranspose2d(CHANNELS, 8, **settings), (4, 5), WEIGHTS[0], fmt)
        check(nn.ConvTranspose2d(CHANNELS, 20, **settings), (4, 5), WEIGHTS[0], fmt)


@pytest.mark.some(3)
@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "uint4", "int8_channel", "binary", "uint16"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_catalogue_formats(name: str, dtype: torch.dtype) -> None:
    """The weights themselves, whose scales are no powers of two, and one cast at the end."""
    quantized, dense = pair(nn.ConvTranspose2d(CHANNELS, 8, 3, groups=2), name, None, dtype)
    x = torch.zeros(1, CHANNELS, 5, 5, dtype=dtype)
    x[0, 7, 2, 2] = 1  # one product for each output: nothing is summed but the bias
    quantized.bias.data.zero_()
    dense.bias.data.zero_()
    same(quantized(x), define(x, dense, None))
    assert quantized(x).abs().amax() > 0


def test_output_format_runs_over_channels_too() -> None:
    fmt = "int4:group8:fp32"
    model = nn.Sequential(nn.ConvTranspose2d(CHANNELS, CHANNELS, 3))
    bs.quantize_(model, bs.Recipe(WEIGHTS[0], INPUTS[1], fmt))
    quantizer, model[0].output = model[0].output, None
    x = torch.randn(2, CHANNELS, 9, 9)
    plain = model(x)
    model[0].output = quantizer
    same(model(x), bs.fake_quantize(plain.movedim(1, -1), fmt).movedim(-1, 1))


@pytest.mark.parametrize("fmt", INPUTS[3:])
def test_static_input(fmt: str) -> None:
    """`channel-1` counts channels; batched or not, one given scale."""
    quantized, dense = pair(nn.ConvTranspose2d(CHANNELS, 8, 3, 2), WEIGHTS[0], fmt)
    seen = torch.randn(2, CHANNELS, 5, 5)
    scale = bs.choose_qparams(seen.movedim(1, -1), fmt)
    quantized.input.set_scale(*scale)
    x = (seen * 2).requires_grad_()
    y, expected = quantized(x), define(x, dense, fmt, scale)
    same(y, expected)
    same(quantized(x[0]), expected[0])
    gradient = whole(*y.shape)
    same(*(torch.autograd.grad(each, x, gradient)[0] for each in (y, expected)))


def test_odd_values() -> None:
    """NaN and infinities go where torch's own puts them; -0 and subnormals are values."""
    quantized, dense = pair(nn.ConvTranspose1d(CHANNELS, 8, 3, 2), WEIGHTS[0])
    x = whole(1, CHANNELS, 6)
    x[0, 0, :4] = torch.tensor([float("nan"), float("inf"), -0.0, 2.0**-149])
    torch.testing.assert_close(quantized(x), dense(x), rtol=0, atol=0, equal_nan=True)
    assert quantized(x).isnan().any()


def test_the_rows_of_a_weight() -> None:
    assert row_size([12, 5, 3], 1) == 36
    assert row_size([12, 5, 3, 2], 4) == 18


def test_autocast_does_not_reach_inside() -> None:
    quantized, _ = pair(nn.ConvTranspose2d(CHANNELS, 8, 3), "int8_channel")
    x = torch.randn(2, CHANNELS, 5, 5)
    expected = quantized(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        same(quantized(x), expected)


@pytest.mark.slow
@pytest.mark.some(5)
@pytest.mark.parametrize("kind", KINDS)
def test_compile_and_export(kind) -> None:
    """With free sizes of batch and image."""
    torch._dynamo.reset()
    conv = kind(CHANNELS, 8, 3, stride=2, groups=2)
    quantized, _ = pair(conv, WEIGHTS[0], INPUTS[2])
    size = KINDS[kind]
    run = torch.compile(quantized, fullgraph=True, backend="aot_eager", dynamic=True)
    free = {0: torch.export.Dim("batch", min=2, max=9), 2: torch.export.Dim("n", min=2, max=99)}
    x = torch.randn(4, CHANNELS, *size)
    program = torch.export.export(quantized, (x,), dynamic_shapes=(free,))
    for count in (4, 2, 7):
        x = torch.randn(count, CHANNELS, size[0] + count, *size[1:])
        same(run(x), quantized(x))
        same(program.module()(x), quantized(x))


def test_messages() -> None:
    quantized, _ = pair(nn.ConvTranspose3d(CHANNELS, 8, 3), WEIGHTS[0])
    words = r"expected an input \[batch, 12, d, h, w\], found \(1, 11, 5, 5, 5\)"
    with pytest.raises(ValueError, match=words):
        quantized(torch.randn(11, 5, 5, 5))
    with pytest.raises(ValueError, match=r"expected an input \[batch, 12, d, h, w\], found \(5, 5"):
        quantized(torch.randn(5, 5))
    with pytest.raises(TypeError, match="found float64"):
        quantized(torch.randn(2, CHANNELS, 5, 5, 5, dtype=torch.float64))
