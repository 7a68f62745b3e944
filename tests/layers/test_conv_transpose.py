# SPDX-License-Identifier: BSD-3-Clause
"""QConvTranspose as a module: tests/ops/test_conv_transpose.py has what it computes."""

import copy

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.layers.conv import QConvTranspose, added_sizes
from tests.support.ops_conv import pair, whole

CONVS = [
    nn.ConvTranspose1d(4, 6, 3),
    nn.ConvTranspose1d(4, 6, 3, stride=3, padding=2, output_padding=2),
    nn.ConvTranspose2d(4, 6, (3, 1), stride=(2, 1), padding=(1, 0)),
    nn.ConvTranspose2d(4, 6, 3, dilation=2, groups=2, bias=False),
    nn.ConvTranspose3d(4, 8, 2, stride=2, groups=4),
]


def quantized(layer: nn.Module, recipe="int8_channel") -> nn.Module:
    model = nn.Sequential(copy.deepcopy(layer))
    bs.quantize_(model, recipe)
    return model[0]


def image(conv: nn.Module, size: int = 5) -> Tensor:
    return whole(2, conv.in_channels, *(size,) * len(conv.kernel_size))


@pytest.mark.parametrize("conv", CONVS, ids=str)
def test_settings_are_the_float_layers(conv: nn.Module) -> None:
    layer = quantized(conv)
    assert isinstance(layer, QConvTranspose)
    for name in ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation",
                 "groups", "padding_mode", "output_padding"):  # fmt: skip
        assert getattr(layer, name) == getattr(conv, name)
    assert f"kernel_size={conv.kernel_size}" in repr(layer)
    assert tuple(layer.weight.codes.shape) == (conv.out_channels, conv.weight[:, 0].numel() //
                                               conv.groups)  # fmt: skip


@pytest.mark.parametrize("groups", [1, 2])
def test_blocks_run_over_the_channels_of_one_kernel_position(groups: int) -> None:
    """Spelled out: row o has, for each place of the kernel, the inputs of o's group."""
    conv = nn.ConvTranspose2d(8, 6, 2, groups=groups)
    layer = quantized(conv, "int4:group4:fp32")
    rows = []
    for o in range(6):
        group, own = divmod(o, 6 // groups)
        inputs = range(group * 8 // groups, (group + 1) * 8 // groups)
        places = [(y, x) for y in range(2) for x in range(2)]
        rows.append([conv.weight[i, own, y, x].item() for y, x in places for i in inputs])
    codes = bs.quantize(torch.tensor(rows), "int4:group4:fp32")
    assert layer.weight.scale.shape == (6, 8 // groups)  # four places of 8 / groups channels
    assert torch.equal(layer.weight.codes, codes.packed)
    assert torch.equal(layer.weight.scale, codes.scale)


def test_channel0_is_the_output_channel() -> None:
    conv = nn.ConvTranspose1d(6, 4, 3, groups=2)
    amax = torch.cat([part.abs().amax((0, 2)) for part in conv.weight.chunk(2)])
    assert torch.equal(quantized(conv).weight.scale[:, 0], amax / torch.tensor(127.0))


def test_each_size_that_a_stride_leaves_open() -> None:
    """As PyTorch takes it: the image's sizes, or all of them, with a batch or without."""
    for conv in (
        nn.ConvTranspose1d(12, 6, 3, stride=3, padding=1),
        nn.ConvTranspose2d(12, 6, 3, stride=2, dilation=2, groups=2),
        nn.ConvTranspose3d(12, 6, 2, stride=(2, 1, 3), output_padding=(1, 0, 2)),
    ):
        layer, dense = pair(conv, "int4:group8:e8m0/floor")
        x = image(conv, 3)
        settings = zip(conv.stride, conv.padding, conv.dilation, conv.kernel_size, strict=True)
        least = [(3 - 1) * s - 2 * p + d * (k - 1) + 1 for s, p, d, k in settings]
        for more in range(max(conv.stride)):
            size = [n + min(more, s - 1) for n, s in zip(least, conv.stride, strict=True)]
            for asked in (size, torch.Size(size), [2, 6, *size]):
                assert torch.equal(layer(x, asked), dense(x, list(asked)))
            assert torch.equal(layer(x[0], output_size=[6, *size]), dense(x[0], [6, *size]))
        assert torch.equal(layer(x), dense(x))
        with pytest.raises(ValueError, match="valid sizes range from"):
            layer(x, [size[0] + 1, *size[1:]])
        with pytest.raises(ValueError, match="output_size must have"):
            layer(x, [*size, 1, 1, 1])


def test_the_added_sizes() -> None:
    conv, x = nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1), torch.ones(1, 4, 5, 5)
    assert added_sizes(conv, x, None) == [1, 1]
    assert added_sizes(conv, x, (11, 12)) == [0, 1]


def test_what_it_gives_for_the_input_of_a_call() -> None:
    layer, x = quantized(CONVS[2]), image(CONVS[2])
    for y in (layer(x), layer(x, (10, 5))):
        assert torch.equal(layer.like(x, y), y)
    assert quantized(nn.Conv1d(4, 6, 3)).like(torch.ones(2, 4, 9), y).shape == (2, 6, 7)


def test_hooks_copies_and_the_meta_device() -> None:
    seen = []
    conv = nn.ConvTranspose2d(4, 6, 3, stride=2)
    conv.register_forward_hook(lambda _, args, kwargs, y: seen.append(kwargs), with_kwargs=True)
    layer = quantized(conv)
    x = image(conv)
    y = copy.deepcopy(layer)(x, output_size=[12, 12])
    assert seen == [{"output_size": [12, 12]}]
    assert y.shape == (2, 6, 12, 12)
    shape = copy.deepcopy(layer).to("meta")(x.to("meta"), output_size=[12, 12]).shape
    assert shape == (2, 6, 12, 12)
    meta = nn.Sequential(nn.ConvTranspose2d(4, 6, 3, device="meta"))
    with pytest.raises(bs.SkippedError, match="holds no data"):
        bs.quantize_(meta, "int8", strict=True)


@pytest.mark.slow
def test_compile_and_export_with_a_size_that_is_asked_for() -> None:
    """A decoder asks for the size that its encoder had, which is not known beforehand."""

    class UpAndDown(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.Conv2d(3, 4, 3, stride=2, padding=1)
            self.up = nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return self.up(self.down(x), output_size=x.shape[2:]) + x

    model = UpAndDown().eval()
    bs.quantize_(model, bs.Recipe("int8_channel", "int8_token"))
    torch._dynamo.reset()
    run = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
    height = torch.export.Dim.AUTO  # torch's own layer leaves a check that no range can prove
    x = torch.randn(2, 3, 12, 12)
    program = torch.export.export(model, (x,), dynamic_shapes=({2: height},)).module()
    for size in (12, 13, 20, 9):
        x = torch.randn(2, 3, size, 12)
        with bs.use("reference"):
            expected = model(x)
            assert torch.equal(run(x), expected)
            assert torch.equal(program(x), expected)


def test_layers_that_share_a_weight() -> None:
    """Alike, they share the codes; in other groups the same weight has other rows."""

    def two(groups: int) -> nn.Sequential:
        first, second = (
            nn.ConvTranspose1d(4, 4, 3),
            nn.ConvTranspose1d(4, 4 * groups, 3, groups=groups),
        )
        second.weight = first.weight
        return nn.Sequential(first, second)

    alike = two(1)
    bs.quantize_(alike, "int8", strict=True)
    assert alike[0].weight is alike[1].weight
    with pytest.raises(bs.SkippedError, match="its weight is tied to 1, which cannot share"):
        bs.quantize_(two(2), "int8", strict=True)
