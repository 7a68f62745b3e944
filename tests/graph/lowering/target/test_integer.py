# SPDX-License-Identifier: BSD-3-Clause
"""Lowering to integers, from the model to the audit."""

import pytest
import torch
from torch import nn

import blockscale as bs
from tests.graph.lowering.integers.flows import BOTH, check, fused
from tests.graph.lowering.programs import layers


class Cell(nn.Module):
    """A convolution with a batch norm, a residual from the input, a pool, a linear layer."""

    def __init__(self):
        super().__init__()
        self.c1, self.bn = nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3)
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(3, 5)
        self.bn.running_mean.normal_()
        self.bn.running_var.uniform_(0.5, 2)

    def forward(self, x):
        y = torch.relu(self.bn(self.c1(x)) + x)
        return self.fc(self.pool(y).flatten(1))


RULES = {"op:add": BOTH, "op:relu": BOTH, "op:adaptive_avg_pool2d": BOTH}


@pytest.mark.slow
def test_a_small_network():
    torch.manual_seed(0)
    x = torch.randn(4, 3, 8, 8)
    graph = fused(Cell(), x, RULES)
    check(graph, x)
    lowered = bs.graph.lower(graph, "integer")
    audit = bs.graph.audit_integer(lowered)
    assert audit.integer and audit.exact and set(audit.edges) <= {"int8", "int32"}
    assert [each.kind for each in audit.sums] == ["conv", "add", "adaptive_avg_pool2d", "linear"]
    told = str([entry.notes for entry in bs.graph.ledger(lowered)])
    assert "sums reach" in told and "int32" in told
    assert {each.way for each in bs.graph.ways(lowered)} == {"integers"}
    assert not [n for n, b in lowered.named_buffers() if b.is_floating_point()]


@pytest.mark.slow
def test_a_converted_graph_is_fused_first():
    x = torch.randn(4, 3, 8, 8)
    program = torch.export.export(Cell().eval(), (x,))
    recipe = bs.Recipe("int8:channel0:pow2/nearest", "int8:tensor:pow2/nearest", rules=RULES)
    prepared = bs.graph.prepare(program, recipe, observer="min_max")
    bs.calibrate(prepared, [x], progress=False)
    converted = bs.graph.convert(prepared)
    y = bs.graph.lower(bs.graph.fuse(converted), "integer")(x)
    assert torch.equal(bs.graph.lower(converted, "integer")(x), y)


@pytest.mark.slow
def test_it_is_exported_and_keeps_its_bits():
    x = torch.randn(4, 3, 8, 8)
    lowered = bs.graph.lower(fused(Cell(), x, RULES), "integer")
    program = torch.export.export(lowered, (x,))
    assert torch.equal(program.module()(x), lowered(x))


def test_float_scales_are_refused_and_nothing_changes():
    graph, x = layers("int8 static")
    before = graph(x)
    with pytest.raises(bs.graph.NotIntegerError, match="needs a power-of-two scale"):
        bs.graph.lower(graph, "integer")
    assert torch.equal(graph(x), before)


@pytest.mark.slow
def test_the_ledger_says_what_doors_cost_a_convolution_that_stands_alone():
    x = torch.randn(1, 4, 6, 6)
    alone = nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten())
    two = nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
    for model, count in ((alone, 1), (two, 0)):
        lowered = bs.graph.lower(fused(model.eval(), x, {}), "integer")
        told = [e.details for e in bs.graph.ledger(lowered) if "doors'" in (e.details or "")]
        assert len(told) == count
        assert all("1.6 to 2.4 of float32's time" in each for each in told)
