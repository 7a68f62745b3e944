# SPDX-License-Identifier: BSD-3-Clause
"""Graphs as text."""

import pytest
import torch
from torch import nn

import blockscale as bs


@pytest.mark.slow
def test_a_line_for_each_op():
    model, x = nn.Sequential(nn.Linear(8, 4), nn.ReLU()), torch.randn(2, 8)
    rows = torch.export.Dim("rows")
    program = torch.export.export(model.eval(), (x,), dynamic_shapes=({0: rows},))
    prepared = bs.graph.prepare(program, bs.Recipe("int8_channel", "int8:tensor:fp32", "mxfp8"))
    prepared(x)
    lines = [line.split() for line in bs.graph.draw(prepared).splitlines()]
    assert [line[0] for line in lines] == ["input_1", "0", "relu", "return"]
    text = bs.graph.draw(bs.graph.convert(prepared))
    names = [line.split()[0] for line in text.splitlines()]
    assert names == ["input_1", "q", "dq", "dq2", "linear", "q2", "dq3", "relu", "return"]
    assert "dequantize(0.weight.codes int8:channel0:fp32)" in text and "f32[4, 8]" in text
    assert "q2[0] e4m3:group32:e8m0/floor" in text  # a dynamic scale: codes of a list
    assert "None" not in text and "…" not in text
    fused = bs.graph.draw(bs.graph.fuse(bs.graph.convert(prepared)))
    (line,) = [each for each in fused.splitlines() if "fused_linear" in each]
    assert line.split()[0] == "linear" and "-> e4m3:group32:e8m0/floor" in line


@pytest.mark.slow
def test_every_name_is_used_once():
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(3)])
    graph = bs.graph.fuse(torch.export.export(bs_quantized(model), (torch.randn(2, 8),)))
    names = [line.split()[0] for line in bs.graph.draw(graph).splitlines()]
    assert len(names) == len(set(names))


def bs_quantized(model):
    bs.quantize_(model, bs.Recipe("int8", "int8_token"))
    return model.eval()
