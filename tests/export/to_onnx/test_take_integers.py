# SPDX-License-Identifier: BSD-3-Clause
"""Every op of an integer graph becomes a mark, and what made its sizes is gone."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import blockscale as bs
from blockscale.export.to_onnx.take_integers import is_integers, take_integer_ops, without_dead
from blockscale.graph.program import exported, imported
from tests.export.to_onnx.running import exported as file
from tests.graph.lowering.integers.flows import BOTH, fused
from tests.support.integer_models import INT8, PER_CHANNEL, quantized


def integer():
    torch.manual_seed(0)
    x = torch.randn(2, 1, 6, 6)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))
    return bs.graph.to_integer(quantized(model, x, PER_CHANNEL, INT8), x).eval(), x


def test_marks():
    model, x = integer()
    before = model(x)
    graph = imported(model.steps)
    assert is_integers(graph)
    pieces = take_integer_ops(graph)
    program = without_dead(exported(graph))
    called = [str(n.target) for n in program.graph.nodes if n.op == "call_function"]
    assert len([name for name in called if "_symbolic" in name]) == len(pieces)
    assert not [name for name in called if "blockscale" in name]
    assert [piece.op for piece in pieces] == ["quantize", "conv", "linear", "dequantize"]
    assert pieces[0].given["x"].kind == torch.float32
    assert pieces[1].given["x"].kind == torch.int8
    assert pieces[1].given["x"].sizes == (2, 6, 6, 1)  # the example's: batches are free anyway
    assert torch.equal(model(x), before)  # the model stays as it was


class Net(nn.Module):
    """Products of two tensors, a table, a mean and a padded convolution."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(1, 4, 3, padding="same"), nn.Linear(4, 3)

    def forward(self, x):
        y = F.pad(F.gelu(self.conv(x)), (1, 0, 0, 2))
        return self.fc((y * y).mean((2, 3)))


def test_a_graph_that_was_lowered_to_integers(tmp_path):
    """No model of layers, but the graph that C files are made of."""
    torch.manual_seed(0)
    x = torch.randn(2, 1, 6, 6)
    rules = dict.fromkeys(("op:gelu", "op:mul", "op:mean"), BOTH)
    graph = bs.graph.lower(fused(Net(), x, rules), "integer")
    call = file(graph, tmp_path / "model.onnx")
    for each in (x, 100 * x, x.round()):
        assert torch.equal(call(each), graph(each))
        assert torch.equal(call(each, optimized=True), graph(each))


def test_ops_that_onnx_has_not_are_named(tmp_path):
    rules = {"op:softmax": {"input": INT8, "output": "uint8:tensor:pow2/nearest"}}
    model = nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1), nn.Linear(8, 4))
    graph = bs.graph.lower(fused(model, torch.randn(3, 8), rules), "integer")
    message = "softmax of 1.*: ONNX has no integer operators for integer_softmax: leave it in fl"
    with pytest.raises(ValueError, match=message):
        bs.export.onnx(graph, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
