# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions of codes, channels last."""

import copy

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.graph.expand import expand
from blockscale.graph.passes import FUSE, clean, fuse_conv
from tests.graph.passes.nets import Coded, Function, exported, graph_of, names, same_after
from tests.support.passes_fuse import fused
from tests.support.some import crossed

LAYERS = {
    "conv1d": (nn.Conv1d(8, 16, 3, padding=1, stride=2), (8, 9)),
    "conv2d": (nn.Conv2d(8, 16, 3, dilation=2), (8, 9, 7)),
    "same": (nn.Conv2d(8, 16, 3, padding="same"), (8, 5, 5)),
    "grouped": (nn.Conv2d(8, 16, (3, 1), groups=2, padding=(1, 0), bias=False), (8, 5, 5)),
    "depthwise": (nn.Conv2d(8, 8, 3, groups=8), (8, 5, 5)),
    "one channel": (nn.Conv2d(1, 4, 3), (1, 5, 5)),
    "transposed": (nn.ConvTranspose2d(8, 6, 3, stride=2, output_padding=1), (8, 4, 4)),
    "transposed, grouped": (nn.ConvTranspose1d(8, 6, 2, groups=2), (8, 5)),
}


def converted(net: nn.Module, x: Tensor, weight: str, inputs: str | None):
    """The Q/DQ graph of the net with quantized layers."""
    net = net.eval()
    bs.quantize_(net, bs.Recipe(weight=weight, input=inputs))
    graph = exported(net, x)
    expand(graph)
    return graph


@pytest.mark.slow
@pytest.mark.some(8)
@pytest.mark.parametrize(("case", "inputs"), crossed(2, LAYERS, [None, "int8:token:fp32", "mxfp8"]))
def test_each(case: str, inputs: str | None) -> None:
    layer, size = LAYERS[case]
    x = torch.randn(3, *size)
    graph = converted(nn.Sequential(copy.deepcopy(layer), nn.ReLU()), x, "int8_channel", inputs)
    # not of one image: torch's transposed convolution may then sum in another order
    changes = same_after(graph, (clean, fuse_conv), x, x[:2])
    assert changes["fuse_conv"] == 1
    (call,) = fused(graph)
    assert call.fused.name == "conv" and bool(call.operands[0].fmt) == (inputs is not None)
    torch.export.export(graph, (x,), dynamic_shapes=({0: torch.export.Dim("b", max=64)},))


BY_PLACE = {
    "gelu": nn.GELU(),
    "gelu_tanh": nn.GELU("tanh"),
    "silu": nn.SiLU(),
    "sigmoid": nn.Sigmoid(),
    "tanh": nn.Tanh(),
}


@pytest.mark.some(6)
@pytest.mark.parametrize("kind", BY_PLACE)
def test_what_depends_on_places_in_memory_is_inside(kind: str) -> None:
    """To the bit: of 441 numbers the last ones go through other code than vectors."""
    x = torch.randn(3, 8, 7, 7)
    layer = nn.Sequential(nn.Conv2d(8, 3, 3, padding=1), BY_PLACE[kind])
    graph = converted(layer, x, "int8_channel", "mxfp8")
    batches = [torch.randn(3, 8, 7, 7) * 3 for _ in range(8)]
    assert same_after(graph, (clean, fuse_conv), *batches)["fuse_conv"] == 1
    (call,) = fused(graph)
    assert call.settings["activation"] == kind
    assert not [n for n in names(graph) if n.startswith("aten.") and kind[:4] in n]


@pytest.mark.parametrize("case", ["other nodes read it", "channels last"])
def test_what_must_stay_behind(case: str) -> None:
    conv = nn.Conv2d(8, 3, 3, padding=1)

    def net(self, x):
        y = self.conv(x)
        if case == "other nodes read it":
            return y + nn.functional.silu(y)
        return nn.functional.gelu(y.to(memory_format=torch.channels_last))

    x = torch.randn(3, 8, 7, 7)
    graph = converted(Function(net, conv=conv), x, "int8_channel", "mxfp8")
    assert same_after(graph, (clean, fuse_conv), x, x * 3)["fuse_conv"] == 1
    (call,) = fused(graph)
    assert call.settings["activation"] == ""


class Branches(nn.Module):
    """Convolutions with what lies between them, a residual sum and a view behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(16, 16, 1)
        self.norm, self.last = nn.BatchNorm2d(16), nn.Linear(16 * 25, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        y = self.second(x).relu() + x
        return self.last(self.second(y).view(x.shape[0], -1))


@pytest.mark.slow
def test_permutes_between_convolutions_go() -> None:
    x = torch.randn(3, 8, 5, 5)
    graph = converted(Branches(), x, "int8_channel", "int8:token:fp32")
    same_after(graph, FUSE, x, x[:1])
    permutes = [name for name in names(graph) if "permute" in name]
    assert len(permutes) == 2  # in front, and before the view
    convs = [call for call in fused(graph) if call.fused.name == "conv"]
    assert len(convs) == 3 and all(call.operands[0].fmt for call in convs)


def test_a_weight_in_another_order_is_not_taken() -> None:
    def net(self, x):
        weight = self.weight().view(16, 8, 3, 3)  # channels first, as nobody stores it
        return torch.conv2d(x, weight)

    weight = Coded(torch.randn(16, 72), "int8:channel0:fp32")
    graph = graph_of(net, torch.randn(3, 8, 5, 5), weight=weight)
    assert same_after(graph, (fuse_conv,), torch.randn(3, 8, 5, 5)) == {"fuse_conv": 0}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize(
    ("kernel", "padding", "count"), [(3, "same", 1), (2, "same", 0), (2, "valid", 1)]
)
def test_padding_by_name(kernel: int, padding: str, count: int) -> None:
    """An even kernel is padded more on one side, which fused_conv does not do."""

    def net(self, x):
        weight = self.weight().view(4, kernel, kernel, 8).permute(0, 3, 1, 2)
        return torch.nn.functional.conv2d(x, weight, padding=padding)

    x = torch.randn(3, 8, 5, 5)
    weight = Coded(torch.randn(4, 8 * kernel * kernel), "int8:channel0:fp32")
    assert same_after(graph_of(net, x, weight=weight), (fuse_conv,), x) == {"fuse_conv": count}


def test_an_image_without_a_batch_stays() -> None:
    def net(self, x):
        weight = self.weight().view(4, 3, 3, 8).permute(0, 3, 1, 2)
        return torch.conv2d(x, weight)

    x = torch.randn(8, 5, 5)
    weight = Coded(torch.randn(4, 72), "int8:channel0:fp32")
    graph = exported(Function(net, weight=weight), x, dynamic=False)
    assert same_after(graph, (fuse_conv,), x) == {"fuse_conv": 0}
