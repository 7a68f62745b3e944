# SPDX-License-Identifier: BSD-3-Clause
"""Permutes that undo one another."""

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.graph.expand import expand
from blockscale.graph.passes import channels_last, clean
from tests.graph.passes.nets import exported, graph_of, names, same_after


class Elementwise(nn.Module):
    """Between two permutes that undo one another: what stays in place, and what does not."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1) * 2


X = torch.randn(3, 5, 6, 8)


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("function", "count"),
    [
        (lambda x: x, 1),
        (torch.relu, 1),
        (lambda x: x.contiguous(), 1),
        (lambda x: x.relu().contiguous().abs() + x, 1),
        (lambda x: x.sigmoid(), 0),  # its last bits depend on where an element lies
        (lambda x: x * torch.arange(6.0), 0),  # along another dimension
        (lambda x: x.softmax(1), 0),
        (lambda x: x.mean(1, keepdim=True), 0),
        (lambda x: nn.functional.max_pool2d(x, 2), 0),
    ],
)
def test_channels_last(function, count: int) -> None:
    graph = exported(Elementwise(function), X)
    assert same_after(graph, (channels_last,), X, X[:1]) == {"channels_last": count}
    assert ("aten.permute.default" in names(graph)) == (count == 0)


def test_permutes_that_do_not_undo_one_another_stay() -> None:
    graph = graph_of(lambda _, x: x.permute(0, 2, 3, 1).permute(0, 2, 3, 1) * 2, X)
    assert same_after(graph, (channels_last,), X) == {"channels_last": 0}
    graph = graph_of(lambda _, x: x.transpose(1, -1).relu().transpose(-1, 1) * 2, X)
    assert same_after(graph, (channels_last,), X) == {"channels_last": 1}


class RoundTrips(nn.Module):
    """What lies between two permutes, with quantizing in it, and who else reads it."""

    def __init__(self, fmt: str, other) -> None:
        super().__init__()
        self.fmt, self.other = fmt, other
        self.register_buffer("scale", torch.tensor([[[[0.03]]]]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.permute(0, 3, 1, 2).relu()
        y = bs.fake_quantize(y, self.fmt, scale=self.scale)
        return y.permute(0, 2, 3, 1) * 2, self.other(y)


@pytest.mark.slow
@pytest.mark.parametrize("fmt", ["int8:tensor:fp32", "uint7:tensor:fp32", "e2m1:tensor:fp32"])
@pytest.mark.parametrize("other", [lambda y: y.softmax(1), lambda y: y.flatten(1) + 1])
def test_quantizing_under_one_scale_is_pulled_along(fmt, other) -> None:
    """And is done once: another reader gets it permuted back."""
    graph = exported(RoundTrips(fmt, other), X)
    expand(graph)
    passes = (clean, channels_last)
    assert same_after(graph, passes, X, X[:1])["channels_last"] >= 1
    assert names(graph).count("blockscale.quantize.default") == 1
    assert names(graph).count("aten.relu.default") == 1
    assert names(graph).count("aten.permute.default") == 1


@pytest.mark.parametrize(("fmt", "count"), [("uint7:tensor:fp32", 1), ("int8:tensor:fp32", 0)])
def test_codes_that_share_bytes_are_permuted_as_floats(fmt: str, count: int) -> None:
    class Input(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return bs.fake_quantize(x, fmt, scale=torch.tensor(0.03)).permute(0, 2, 3, 1) * 2

    graph = exported(Input(), X)
    expand(graph)
    assert same_after(graph, (clean, channels_last), X)["channels_last"] == count
    order = [name for name in names(graph) if "permute" in name or ".quantize" in name]
    assert ("permute" in order[0]) == bool(count)


@pytest.mark.slow
def test_an_activation_stands_behind_its_convolution() -> None:
    """Before a view, where no permute behind it undoes the one before: codes come out."""
    net = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 5)).eval()
    x = torch.randn(2, 4, 6, 6)
    recipe = bs.Recipe("int8_channel", "uint8:tensor:fp32:asym")
    prepared = bs.graph.prepare(torch.export.export(net, (x,)), recipe)
    prepared(x)
    converted = bs.graph.convert(prepared)
    fused = bs.graph.fuse(converted)
    found = [name for name in names(fused) if "conv" in name or "relu" in name or "quant" in name]
    assert found == ["blockscale.quantize.default", "blockscale.fused_conv.default"]
    assert "relu" in next(n.args for n in fused.graph.nodes if "fused_conv" in str(n.target))
    with bs.use("reference"), torch.no_grad():
        assert torch.equal(fused(x), converted(x))
