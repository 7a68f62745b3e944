# SPDX-License-Identifier: BSD-3-Clause
"""Which nodes are layers: every spelling of a product that torch.export and decompositions use."""

import pytest
import torch
from torch import nn

from blockscale.graph.kinds import equal
from blockscale.graph.layers import with_layers
from blockscale.graph.program import import_graph
from blockscale.layers.kinds import Conv1D

IMAGE = {1: (2, 4, 9), 2: (2, 4, 9, 9), 3: (2, 4, 5, 5, 5)}
CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TURNED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


@pytest.mark.pairs
@pytest.mark.some(4)
@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_convolutions(dims, turned, bias, decomposed):
    settings = {"stride": 2, "padding": 1, "groups": 2, "bias": bias}
    settings |= {"output_padding": 1} if turned else {"dilation": 2}
    model = nn.Sequential((TURNED if turned else CONVS)[dims](4, 6, 3, **settings)).eval()
    x = torch.randn(IMAGE[dims])
    program = torch.export.export(model, (x,))
    graph = import_graph(program.run_decompositions() if decomposed else program)
    assert with_layers(graph) == ("0",)
    assert graph.get_submodule("0").extra_repr() == model[0].extra_repr()
    assert torch.equal(graph(x), model(x))


@pytest.mark.some(12)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (4,)])
def test_linear_decomposed(bias, shape):
    model, x = nn.Sequential(nn.Linear(4, 6, bias)).eval(), torch.randn(shape)
    graph = import_graph(torch.export.export(model, (x,)).run_decompositions())
    with_layers(graph)
    torch.testing.assert_close(graph(x), model(x))


def test_conv1d_of_gpt2():
    layer = Conv1D(6, 4)
    layer.weight, layer.bias = nn.Parameter(torch.randn(4, 6)), nn.Parameter(torch.randn(6))
    x = torch.randn(2, 3, 4)
    expected = x @ layer.weight + layer.bias
    torch.testing.assert_close(layer(x), expected)
    program = torch.export.export(nn.Sequential(layer), (x,))
    graph = import_graph(program)
    assert with_layers(graph) == ("0",)
    node = next(iter(graph.graph.find_nodes(op="call_module")))
    assert node.args[0].op == "placeholder"  # the views around the product are the layer's own
    torch.testing.assert_close(graph(x), expected)


def test_equal_layers():
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    assert equal(one, one) and not equal(one, other)
    other.weight, other.bias = one.weight, one.bias
    assert equal(one, other) and not equal(one, nn.Embedding(2, 2))
    a, b = nn.Conv1d(2, 2, 1), nn.Conv1d(2, 2, 1, stride=2)
    b.weight, b.bias = a.weight, a.bias
    assert not equal(a, b)


def test_settings_that_no_layer_has_are_left():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 6))
            self.bias = nn.Parameter(torch.randn(6))

        def forward(self, x):
            return torch.addmm(self.bias, x, self.weight, beta=2)

    model, x = Scaled(), torch.randn(3, 4)
    graph = import_graph(torch.export.export(model, (x,)))
    assert with_layers(graph) == ()
    assert torch.equal(graph(x), model(x))
