# SPDX-License-Identifier: BSD-3-Clause
"""Quantized constants become codes and scales under the names that files have."""

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.graph.adoption.weights import fold, reader_of
from blockscale.graph.program import imported
from tests.support.op_samples import bits

ops = torch.ops.blockscale


class Quantizes(nn.Module):
    """A weight that is quantized whenever the model runs."""

    def __init__(self, fmt: str, layer: nn.Module, function) -> None:
        super().__init__()
        self.fmt, self.layer, self.function = fmt, layer, function

    def forward(self, x):
        weight = self.layer.weight
        codes, *parts = ops.choose_quantize(weight, self.fmt, None)
        given = (parts[0], None, parts[1] if len(parts) > 1 else None)
        values = ops.dequantize(codes, *given, self.fmt, weight.shape[-1], torch.float32)
        return self.function(x, values, weight)


def folded(model: nn.Module, x):
    graph = imported(torch.export.export(model, (x,)))
    count = fold(graph)
    return graph, count


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("fmt", ["int8_channel", "int4", "mxfp4", "nvfp4"])
def test_a_weight_becomes_codes(fmt: str) -> None:
    model = Quantizes(fmt, nn.Linear(128, 6), lambda x, w, _: torch.nn.functional.linear(x, w))
    x = torch.randn(3, 128)
    graph, count = folded(model, x)
    q = bs.quantize(model.layer.weight.detach(), fmt)
    assert count == 1 and not list(graph.parameters())
    assert bits(graph.get_buffer("layer.weight.codes")) == bits(q.packed)
    assert bits(graph.get_buffer("layer.weight.scale")) == bits(q.qparams.scale)
    assert bits(graph(x)) == bits(x @ q.dequantize().T)
    assert fold(graph) == 0


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_weight_that_is_read_as_floats_too() -> None:
    """Its name is taken by the float tensor, which stays."""
    model = Quantizes("int8", nn.Linear(16, 16), lambda x, w, f: x @ w + x @ f)
    x = torch.randn(3, 16)
    graph, _ = folded(model, x)
    assert {n for n, _ in graph.named_parameters()} == {"layer.weight"}
    assert bits(graph.get_buffer("layer_weight_codes")) == bits(
        bs.quantize(model.layer.weight.detach(), "int8").packed
    )
    assert bits(graph(x)) == bits(model(x).detach())


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_embeddings_read_codes() -> None:
    function = nn.functional.embedding
    model = Quantizes("int4", nn.Embedding(9, 128), lambda x, w, _: function(x, w))
    x = torch.tensor([[0, 8], [3, 3]])
    graph, count = folded(model, x)
    assert count == 2
    names = [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]
    assert names == ["blockscale.embedding.default"]
    assert bits(graph(x)) == bits(model(x).detach())


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_what_depends_on_inputs_stays() -> None:
    model = Quantizes("int8", nn.Linear(16, 16), lambda x, w, _: ops.fake_quantize(
        x @ w, None, None, None, "int8"))  # fmt: skip
    x = torch.randn(3, 16)
    graph, _ = folded(model, x)
    names = [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]
    assert "blockscale.fake_quantize.default" in names


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return self.fc(torch.relu(x)) + 1


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_readers() -> None:
    graph = imported(torch.export.export(Inner(), (torch.randn(2, 8),)))
    named = {node.name: reader_of(node) for node in graph.graph.nodes if node.op != "output"}
    assert named["relu"] == "fc.input"
    assert "fc.weight" in named.values() and "fc.bias" in named.values()
