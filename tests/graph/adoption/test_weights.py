# SPDX-License-Identifier: BSD-3-Clause
"""Quantized constants become codes and scales under the names that files have."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import blockscale as bs
from blockscale.core.pack import from_stored
from blockscale.graph.adoption.weights import fold, reader_of
from blockscale.graph.program import import_graph
from tests.graph.adoption.cases import A, D, adopted, graph_of, left
from tests.support import adopt_producers as producers
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
    graph = import_graph(torch.export.export(model, (x,)))
    count = fold(graph)
    return graph, count


@pytest.mark.some(4)
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
    graph = import_graph(torch.export.export(Inner(), (torch.randn(2, 8),)))
    named = {node.name: reader_of(node) for node in graph.graph.nodes if node.op != "output"}
    assert named["relu"] == "fc.input"
    assert "fc.weight" in named.values() and "fc.bias" in named.values()


# Weights of others' convolutions as layers of ours store them.

torch.manual_seed(0)
CASES = {
    "conv1d": (F.conv1d, (2, 4, 9), (6, 4, 3), 0, {}),
    "grouped": (F.conv2d, (2, 4, 7, 7), (6, 2, 3, 3), 0, {"groups": 2}),
    "conv3d": (F.conv3d, (2, 2, 5, 5, 5), (3, 2, 2, 2, 2), 0, {"padding": 1}),
    "transposed": (F.conv_transpose2d, (2, 4, 5, 5), (4, 6, 2, 2), 1, {"stride": 2}),
    "transposed, grouped": (F.conv_transpose1d, (2, 4, 5), (4, 3, 2), 1, {"groups": 2}),
}


@pytest.mark.slow
@pytest.mark.parametrize("by", ["output", "tensor", "4 bits"])
@pytest.mark.parametrize("case", CASES)
def test_values_stay_and_fuse_takes_them(case: str, by: str) -> None:
    run, x_shape, shape, axis, settings = CASES[case]
    high = 7 if by == "4 bits" else 127
    codes = torch.randint(-high - 1, high + 1, shape, dtype=torch.int8)
    count = 1 if by == "tensor" else shape[axis]
    scale, zeros = 2.0 ** torch.randint(-9, -5, (count,)), torch.zeros(count, dtype=torch.int64)
    block = [1 if dim == axis and by != "tensor" else n for dim, n in enumerate(shape)]

    def model(x, codes, scale, zeros):
        w = A.dequantize_affine(codes, block, scale, zeros, torch.int8, -high - 1, high)
        x = D.quantize_per_tensor(x, 0.0625, 3, 0, 255, torch.uint8)
        return run(D.dequantize_per_tensor(x, 0.0625, 3, 0, 255, torch.uint8), w, **settings)

    x = torch.randn(x_shape) * 4
    graph = graph_of(model, x, free=False, codes=codes, scale=scale, zeros=zeros)
    made = adopted(graph)
    assert not left(made)
    stored = [t for t in made.buffers() if t.ndim == 2 and t.dtype in (torch.int8, torch.uint8)]
    assert len(stored) == 1
    expected = graph(x)
    assert bits(made(x)) == bits(expected)  # sums of powers of two are exact in any order
    fused = bs.graph.fuse(graph)
    assert "fused_conv" in str(fused.graph) and torch.equal(fused(x), expected)


@pytest.mark.slow
def test_the_matrix_is_a_layers() -> None:
    """As `bs.quantize_` stores it, under the layer's name."""
    X = producers.example()
    made = adopted_program(producers.pt2e(producers.Small(), X))
    state, weight = made.state_dict(), producers.Small().one.weight
    assert state["one.weight.codes"].shape == (8, 27)
    scale = state["one.weight.scale"]
    found = from_stored(state["one.weight.codes"] * scale, "channels_last", weight.shape)
    assert ((found - weight).abs() <= scale.reshape(8, 1, 1, 1) * 0.51).all()


def adopted_program(graph):
    from blockscale.graph.adoption.program import as_ours

    return as_ours(graph)


@pytest.mark.slow
def test_other_blocks_stay() -> None:
    codes, scale = torch.ones(6, 4, 3, 3, dtype=torch.int8), torch.rand(6, 4, 1, 1)

    def model(x, codes, scale):
        w = A.dequantize_affine(codes, [1, 1, 3, 3], scale, None, torch.int8)
        return F.conv2d(x, w)

    x = torch.randn(1, 4, 5, 5)
    graph = graph_of(model, x, free=False, codes=codes, scale=scale)
    made = adopted(graph)
    assert [t.shape for t in made.buffers() if t.dtype == torch.int8] == [(6, 4, 3, 3)]
    assert bits(made(x)) == bits(graph(x))
