# SPDX-License-Identifier: BSD-3-Clause
"""Nodes that are no ops of numbers: moves, inputs, outputs."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import blockscale as bs
from tests.graph.lowering.integers.flows import UINT8, fused, integers


class Moves(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 12), nn.Linear(6, 3)

    def forward(self, x):
        x = F.pad(x.transpose(0, 1).flatten(1), (0, 1))  # floats of the input
        y = F.pad(self.a(x).unflatten(1, (2, 6)), (0, 0, 1, 0))
        return self.b(y[:, 1:].permute(1, 0, 2)), y


@pytest.mark.slow
@pytest.mark.parametrize("fmt", [UINT8])
def test_moves(fmt):
    x = torch.randn(7, 5)
    graph = fused(Moves(), x, fmt=fmt)
    lowered = integers(graph)
    with bs.use("reference"):
        for found, expected in zip(lowered(x), graph(x), strict=True):
            assert torch.equal(found, expected)


class Before(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 3)

    def forward(self, x):
        return self.a(x * 2)


def test_floats_before_the_first_format_are_refused():
    graph = fused(Before(), torch.randn(2, 8))
    with pytest.raises(bs.graph.NotIntegerError, match=r"mul.* takes floats: .* 'op:mul'"):
        bs.graph.lower(graph, "integer")


def test_floats_that_go_out_are_refused():
    graph = fused(nn.Sequential(nn.Linear(4, 4), nn.Softplus()), torch.randn(2, 4))
    with pytest.raises(bs.graph.NotIntegerError, match=r"softplus.* takes sums|softplus.* no"):
        bs.graph.lower(graph, "integer")


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, mask):
        y = self.b(torch.relu(self.a(x)))
        return y, mask & (mask > 0), x.shape[0]


@pytest.mark.slow
def test_what_is_no_float_stays():
    x, mask = torch.randn(2, 8), torch.ones(2, dtype=torch.bool)
    graph = fused(Twice(), (x, mask))
    lowered = integers(graph)
    with bs.use("reference"):
        y, seen, _ = lowered(x, mask)
        assert torch.equal(y, graph(x, mask)[0]) and torch.equal(seen, mask)
