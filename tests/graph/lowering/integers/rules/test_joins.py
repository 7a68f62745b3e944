# SPDX-License-Identifier: BSD-3-Clause
"""Tensors that become one."""

import pytest
import torch
from torch import nn

import blockscale as bs
from tests.graph.lowering.integers.flows import INT8, UINT8, check, fused


class Cat(nn.Module):
    def __init__(self, join):
        super().__init__()
        self.a, self.b, self.join = nn.Linear(6, 4), nn.Linear(6, 4), join
        self.b.weight.data *= 16

    def forward(self, x):
        return self.join([self.a(x), self.b(x)], 1)


@pytest.mark.some(2)
@pytest.mark.parametrize("name", ["cat", "stack"])
@pytest.mark.parametrize(
    "rule", [{"input": INT8, "shared": True}, {"input": INT8, "output": UINT8}]
)
def test_joins(name, rule):
    x = torch.randn(5, 6)
    check(fused(Cat(getattr(torch, name)), x, {f"op:{name}": rule}), x)


def test_several_scales_need_a_format():
    graph = fused(Cat(torch.cat), torch.randn(5, 6), {"op:cat": {"input": INT8}})
    with pytest.raises(bs.graph.NotIntegerError, match=r"cat.* joins tensors of different scales"):
        bs.graph.lower(graph, "integer")
