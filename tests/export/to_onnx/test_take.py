# SPDX-License-Identifier: BSD-3-Clause
"""Marks: what torch sees of them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import blockscale as bs
from blockscale.export.to_onnx.take import (
    MARK,
    Activation,
    MarkedRows,
    MarkedWeight,
    is_integers,
    placed,
    placed_like,
    take,
    take_integer_ops,
    without_dead,
)
from blockscale.graph import passes
from blockscale.graph.expand import expand
from blockscale.graph.passes import clean, constants, duplicates
from blockscale.graph.program import exported, import_graph
from tests.export.to_onnx.running import exported as file
from tests.graph.lowering.integers.flows import BOTH, fused
from tests.support.integer_models import INT8, PER_CHANNEL, quantized
from tests.support.layer_formats import REFERENCE


def test_a_mark_runs_in_torch_as_zeros():
    made = placed(3, torch.ones(2, 4), (2, 5), torch.float16)
    assert (made.shape, made.dtype) == ((2, 5), torch.float16)
    assert not made.any()


def test_a_mark_with_the_sizes_of_its_input():
    made = placed_like(0, torch.ones(2, 3, dtype=torch.int64), (7,), torch.float32)
    assert (made.shape, made.dtype) == ((2, 3, 7), torch.float32)


def test_the_exporter_keeps_it_as_one_node():
    class Model(torch.nn.Module):
        def forward(self, x):
            return placed_like(5, x, (), x.dtype)

    program = torch.export.export(Model(), (torch.ones(2),))
    [node] = [n for n in program.graph.nodes if n.op == "call_function"]
    assert node.args[1] == MARK[1] and node.kwargs["domain"] == MARK[0]
    assert node.kwargs["attr_ints"] == [5]


# Marks stand where a graph quantizes, once for each; what cannot be in a file is named.


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
    made = import_graph(bs.graph.convert(prepared))
    expand(made)
    passes.apply(made, (clean, constants, duplicates))
    return made


@pytest.mark.filterwarnings(REFERENCE)
def test_what_stands_for_what():
    made = graph()
    pieces = take(made)
    marks = [node for node in made.graph.nodes if "placed" in str(node.target)]
    assert len(marks) == len(pieces) == 6
    weights = {p.name: p for p in pieces if isinstance(p, MarkedWeight)}
    assert set(weights) == {"q.weight", "k.weight", "conv.weight"}
    assert weights["q.weight"].moves == (("permute", (1, 0)),)
    assert [kind for kind, _ in weights["conv.weight"].moves] == ["view", "permute"]
    assert [p.name for p in pieces if isinstance(p, MarkedRows)] == ["table.weight"]
    activations = [p for p in pieces if isinstance(p, Activation)]
    assert len(activations) == 2  # q and k share one
    assert all(p.qparams is not None for p in activations)


@pytest.mark.slow
@pytest.mark.filterwarnings(REFERENCE)
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


@pytest.mark.filterwarnings(REFERENCE)
def test_a_fused_graph_is_refused():
    program = torch.export.export(Block().eval(), (IDS,))
    prepared = bs.graph.prepare(
        program, bs.Recipe("int8_channel", input="int8"), observer="min_max"
    )
    bs.calibrate(prepared, [IDS], progress=False)
    fused = import_graph(bs.graph.fuse(bs.graph.convert(prepared)))
    with pytest.raises(ValueError, match=r"cannot hold blockscale\..*bs\.graph\.convert"):
        take(fused)


@pytest.mark.filterwarnings(REFERENCE)
def test_a_format_that_no_file_has():
    linear = nn.Sequential(nn.Linear(16, 8))
    with pytest.raises(ValueError, match="cannot quantize to book4:token:fp32: its codebook"):
        take(graph(inputs="book4:token:fp32", model=linear, given=torch.randn(3, 16)))


# Every op of an integer graph becomes a mark, and what made its sizes is gone.


def integer():
    torch.manual_seed(0)
    x = torch.randn(2, 1, 6, 6)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))
    return bs.graph.to_integer(quantized(model, x, PER_CHANNEL, INT8), x).eval(), x


def test_marks():
    model, x = integer()
    before = model(x)
    graph = import_graph(model.steps)
    assert is_integers(graph)
    pieces = take_integer_ops(graph)
    program = without_dead(exported(graph))
    called = [str(n.target) for n in program.graph.nodes if n.op == "call_function"]
    assert len([name for name in called if "_symbolic" in name]) == len(pieces)
    assert not [name for name in called if "blockscale" in name]
    assert [piece.op for piece in pieces] == ["quantize", "conv", "linear", "dequantize"]
    assert pieces[0].args["x"].kind == torch.float32
    assert pieces[1].args["x"].kind == torch.int8
    assert pieces[1].args["x"].sizes == (2, 6, 6, 1)  # the example's: batches are free anyway
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
