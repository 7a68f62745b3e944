# SPDX-License-Identifier: BSD-3-Clause
"""Marks stand where a graph quantizes, once for each; what cannot be in a file is named."""

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.export.to_onnx.pieces import Activation, Rows, Weight
from blockscale.export.to_onnx.take import take
from blockscale.graph import passes
from blockscale.graph.expand import expand
from blockscale.graph.passes import clean, constants, duplicates
from blockscale.graph.program import imported
from tests.support.layer_formats import REFERENCE

pytestmark = pytest.mark.filterwarnings(REFERENCE)


class Block(nn.Module):
    """Two linear layers of one input, a table, a convolution."""

    def __init__(self):
        super().__init__()
        self.table, self.q, self.k = nn.Embedding(9, 16), nn.Linear(16, 8), nn.Linear(16, 8)
        self.conv = nn.Conv2d(1, 4, 3, padding=1)

    def forward(self, ids):
        x = self.table(ids)
        y = self.q(x) + self.k(x)
        return self.conv(y[:, None])


IDS = torch.arange(6).reshape(2, 3)


def graph(weight="int8_channel", inputs="uint8:tensor:fp32:asym", model=None, given=IDS):
    program = torch.export.export((model or Block()).eval(), (given,))
    prepared = bs.graph.prepare(program, bs.Recipe(weight, input=inputs), observer="min_max")
    bs.calibrate(prepared, [given], progress=False)
    made = imported(bs.graph.convert(prepared))
    expand(made)
    passes.apply(made, (clean, constants, duplicates))
    return made


def test_what_stands_for_what():
    made = graph()
    pieces = take(made)
    marks = [node for node in made.graph.nodes if "placed" in str(node.target)]
    assert len(marks) == len(pieces) == 6
    weights = {p.name: p for p in pieces if isinstance(p, Weight)}
    assert set(weights) == {"q.weight", "k.weight", "conv.weight"}
    assert weights["q.weight"].moves == (("permute", (1, 0)),)
    assert [kind for kind, _ in weights["conv.weight"].moves] == ["view", "permute"]
    assert [p.name for p in pieces if isinstance(p, Rows)] == ["table.weight"]
    activations = [p for p in pieces if isinstance(p, Activation)]
    assert len(activations) == 2  # q and k share one
    assert all(p.qparams is not None for p in activations)


def test_one_scale_does_not_see_a_permutation():
    """The convolution reads the mark, not channels last and back."""
    made = graph()
    take(made)
    [conv] = [node for node in made.graph.nodes if "conv2d" in str(node.target)]
    assert "placed" in str(conv.args[0].target)
    made = graph(inputs="int8:group4:fp32")
    take(made)
    [conv] = [node for node in made.graph.nodes if "conv2d" in str(node.target)]
    assert "permute" in str(conv.args[0].target)


def test_a_fused_graph_is_refused():
    program = torch.export.export(Block().eval(), (IDS,))
    prepared = bs.graph.prepare(
        program, bs.Recipe("int8_channel", input="int8"), observer="min_max"
    )
    bs.calibrate(prepared, [IDS], progress=False)
    fused = imported(bs.graph.fuse(bs.graph.convert(prepared)))
    with pytest.raises(ValueError, match=r"cannot hold blockscale\..*bs\.graph\.convert"):
        take(fused)


def test_a_format_that_no_file_has():
    linear = nn.Sequential(nn.Linear(16, 8))
    with pytest.raises(ValueError, match="cannot quantize to book4:token:fp32: its codebook"):
        take(graph(inputs="book4:token:fp32", model=linear, given=torch.randn(3, 16)))
