# SPDX-License-Identifier: BSD-3-Clause
"""Batch norms into the convolution or linear before them."""

import pytest
import torch
from torch import Tensor, nn

from blockscale.core.ledger import Ledger
from blockscale.graph.passes import apply, clean, fold_batch_norm
from blockscale.graph.pickled import State, set_state, state
from tests.graph.passes.nets import exported, names, run, values_hold


def with_statistics(net: nn.Module) -> nn.Module:
    """The net, its batch norms with statistics as after training."""
    torch.manual_seed(0)
    for norm in net.modules():
        if isinstance(norm, nn.modules.batchnorm._BatchNorm):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.01, 2)
            if norm.affine:
                nn.init.normal_(norm.weight)
                nn.init.normal_(norm.bias)
    return net


CASES = {
    "conv1d": (nn.Conv1d(4, 6, 3), nn.BatchNorm1d(6), (4, 9)),
    "conv2d": (nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6), (4, 9, 9)),
    "conv2d same": (nn.Conv2d(4, 6, 3, padding="same"), nn.BatchNorm2d(6), (4, 9, 9)),
    "grouped": (nn.Conv2d(4, 6, 3, groups=2, stride=2), nn.BatchNorm2d(6, eps=0.5), (4, 9, 9)),
    "depthwise": (nn.Conv2d(4, 4, 3, groups=4), nn.BatchNorm2d(4, affine=False), (4, 9, 9)),
    "conv3d": (nn.Conv3d(2, 3, 2), nn.BatchNorm3d(3), (2, 4, 4, 4)),
    "transposed1d": (nn.ConvTranspose1d(4, 6, 3), nn.BatchNorm1d(6), (4, 9)),
    "transposed2d": (nn.ConvTranspose2d(4, 6, 3, groups=2), nn.BatchNorm2d(6), (4, 5, 5)),
    "transposed3d": (nn.ConvTranspose3d(2, 4, 2, bias=False), nn.BatchNorm3d(4), (2, 3, 3, 3)),
    "linear": (nn.Linear(4, 6), nn.BatchNorm1d(6), (4,)),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_same_but_for_rounding(case: str) -> None:
    layer, norm, size = CASES[case]
    net = with_statistics(nn.Sequential(layer, norm, nn.ReLU()))
    x = torch.randn(3, *size)
    graph = exported(net, x)
    weight = net[0].weight.detach().clone()
    expected = net.double()(x.double()).detach()  # torch's own batch norm, in float64
    net.float()
    assert apply(graph, (fold_batch_norm,))["fold_batch_norm"] == 1
    assert not any("batch_norm" in name for name in names(graph))
    found = run(graph, x)[0]
    assert (found - expected).abs().max() <= 1e-6 * expected.abs().max()
    assert torch.equal(net[0].weight, weight)
    assert {name for name, _ in graph.named_buffers()} == {"0.weight", "0.bias"}
    values_hold(graph, x)
    torch.export.export(graph, (x,), dynamic_shapes=({0: torch.export.Dim("b", max=9)},))


def test_the_weight_is_that_of_training() -> None:
    from blockscale.qat.layers.conv import QATConv2d

    net = with_statistics(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))).eval()
    graph = exported(net, torch.randn(2, 3, 8, 8))
    apply(graph, (fold_batch_norm,))
    trained = QATConv2d.__new__(QATConv2d)
    trained.__dict__.update(net[0].__dict__)
    trained.__dict__["_norm"] = (net[1],)
    weight, bias = trained.folded()
    assert torch.equal(graph.get_buffer("0.weight"), weight)
    assert torch.equal(graph.get_buffer("0.bias"), bias)


class Read(nn.Module):
    """A convolution that is also read before its batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(2, 2, 1), nn.BatchNorm1d(2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.norm(y) + y


class Twice(Read):
    """A convolution that is called twice."""

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)) + self.conv(x + 1)


class Far(Read):
    """A batch norm of something else."""

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x).relu())


class Rows(nn.Module):
    """A linear whose features are not the batch norm's channels."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.line(x))


@pytest.mark.parametrize(
    ("net", "reason"),
    [
        (Read(), "other nodes read"),
        (Twice(), "another node"),
        (Far(), "no conv"),
        (Rows(), "features"),
    ],
)
def test_where_it_does_not_apply(net: nn.Module, reason: str) -> None:
    graph = exported(with_statistics(net), torch.randn(3, 2, 4))
    set_state(graph, State("imported", ledger=Ledger()))
    apply(graph, (clean,))
    before = names(graph)
    assert apply(graph, (fold_batch_norm,)) == {"fold_batch_norm": 0}
    assert names(graph) == before
    assert reason in str(state(graph).ledger.entries[0].reason)


def test_statistics_of_the_batch_stay() -> None:
    net = nn.Sequential(nn.Conv1d(2, 2, 1), nn.BatchNorm1d(2)).train()
    program = torch.export.export(net, (torch.randn(3, 2, 4),))
    graph = program.module(check_guards=False)
    assert apply(graph, (fold_batch_norm,)) == {"fold_batch_norm": 0}


def test_of_two_in_a_row_the_first_is_folded_then_the_second() -> None:
    net = nn.Sequential(nn.Conv1d(2, 4, 2), nn.BatchNorm1d(4), nn.BatchNorm1d(4))
    x = torch.randn(3, 2, 5)
    graph = exported(with_statistics(net), x)
    expected = net(x).detach()
    assert apply(graph, (fold_batch_norm,)) == {"fold_batch_norm": 2}
    assert (run(graph, x)[0] - expected).abs().max() <= 1e-6 * expected.abs().max()
