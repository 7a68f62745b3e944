# SPDX-License-Identifier: BSD-3-Clause
"""Sums that become codes behind moves."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import blockscale as bs
from tests.graph.lowering.integers.flows import BOTH, UINT8, check, fused, integers


class Heads(nn.Module):
    """One product whose pieces are moved, each with a scale of its own."""

    def __init__(self, odd=False):
        super().__init__()
        self.all, self.last, self.odd = nn.Linear(8, 24), nn.Linear(8, 3), odd
        self.all.weight.data[8:16] *= 4

    def forward(self, x):
        a, b, c = (each.unflatten(-1, (2, 4)).transpose(1, 2) for each in self.all(x).chunk(3, -1))
        y = (a @ b.transpose(-2, -1) @ c).transpose(1, 2).flatten(2)
        return self.last(y + c.transpose(1, 2).flatten(2)) if self.odd else self.last(y)


@pytest.mark.some(5)
@pytest.mark.parametrize("fmt", ["int8:tensor:pow2/nearest", UINT8])
def test_pieces_end_in_codes(fmt):
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8)
    graph = fused(Heads(), x, {"op:matmul": {"input": fmt, "output": fmt}})
    check(graph, x)
    audit = bs.graph.audit_integer(integers(graph))
    assert audit.ops["integer_linear"] == 4
    assert audit.edges["int32"] == 1  # the result's


@pytest.mark.slow
def test_sums_that_others_read_stay_sums():
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8)
    graph = fused(Heads(odd=True), x, {"op:matmul": BOTH})
    check(graph, x)


class Late(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(4, 3)

    def forward(self, x):
        return self.b(F.relu(self.a(x)).reshape(-1, 4))


@pytest.mark.slow
def test_a_whole_product_behind_moves():
    x = torch.randn(6, 8)
    check(fused(Late(), x), x)
