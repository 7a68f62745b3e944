"""What a graph becomes: doors, and moves that cost nothing."""

import pytest
import torch

import blockscale as bs
from blockscale.export.to_c.walk import walk
from tests.support.c_handmade import handmade
from tests.support.integer_oracle import INT8, shifts, whole

aten = torch.ops.aten


def test_doors_and_moves():
    x = torch.randn(2, 3)
    calls = [
        ("quantize", ["x", -3, 0, INT8]),
        (aten.permute.default, ["@0", [1, 0]]),
        ("rescale", ["@1", 0, shifts(1), 0, -127, 127, INT8]),
        ("dequantize", ["@2", 0, -2]),
    ]
    graph = handmade({"x": x}, calls)
    graph.graph.output_node().args = (tuple(graph.graph.output_node().args[0][-1:]),)
    found = walk(graph, [x])
    assert [(d.array.name, d.shape, d.exponent) for d in found.inputs] == [("in_x", (2, 3), -3)]
    assert [(d.array.name, d.shape, d.exponent) for d in found.outputs] == [("out_0", (3, 2), -2)]
    assert [step.name for step in found.writer.steps] == ["step0_rescale", "step1_move"]


def test_indices_from_inputs_are_refused():
    x, i = whole(-9, 9, 3, 4, dtype=torch.int8), torch.tensor([0, 1])
    graph = handmade({"x": x, "i": i}, [(aten.index_select.default, ["x", 0, "i"])])
    with pytest.raises(bs.graph.NotIntegerError, match="indices are computed from inputs"):
        walk(graph, [x, i])
