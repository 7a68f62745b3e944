# SPDX-License-Identifier: BSD-3-Clause
"""Ops with parameters become layers: under the model's names, in its order, with its tensors."""

import pytest
import torch
from torch import nn

from blockscale.graph.layers import restore_containers, with_layers
from blockscale.graph.nodes import scope
from blockscale.graph.program import import_graph
from blockscale.layers.kinds import Conv1D
from tests.support import graph_models as models
from tests.support.graph_models import run


def layered(model, *args, training=False, **options):
    program = torch.export.export(model.eval(), args, **options)
    graph = import_graph(program)
    return graph, with_layers(graph, training=training)


@pytest.mark.some(5)
@pytest.mark.parametrize("made", [models.bert, models.gpt2, models.net])
def test_the_graph_computes_the_same(made):
    model, program, batches = made()
    graph = import_graph(program)
    names = with_layers(graph)
    assert torch.equal(run(graph, batches[1]), run(model, batches[1]))
    for name in names:
        ours, theirs = graph.get_submodule(name), model.get_submodule(name)
        assert type(ours).__name__ == type(theirs).__name__
        for key, tensor in theirs.named_parameters():
            assert ours.get_parameter(key).data_ptr() == tensor.data_ptr()


@pytest.mark.slow
def test_every_layer_has_its_name():
    model, program, _ = models.gpt2()
    graph = import_graph(program)
    kinds = (nn.Linear, nn.Embedding)
    expected = {
        n for n, m in model.named_modules() if isinstance(m, kinds) or type(m).__name__ == "Conv1D"
    }
    assert set(with_layers(graph)) == expected
    # the table and the head share a weight, and still do
    assert graph.transformer.wte.weight is graph.lm_head.weight
    assert isinstance(graph.transformer.h.get_submodule("0.attn.c_attn"), Conv1D)


def test_order_and_containers_are_the_models():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(4, 4)
            self.list = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
            self.seq = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

        def forward(self, x):
            return self.last(self.seq(self.list[1](self.list[0](x))))

    graph, names = layered(Model(), torch.ones(2, 4))
    assert names == ("list.0", "list.1", "seq.0", "seq.1", "last")  # the program's order
    restore_containers(graph)
    found = [n for n, m in graph.named_modules() if isinstance(m, nn.Linear)]
    assert found == ["last", "list.0", "list.1", "seq.0", "seq.1"]  # the model's
    assert isinstance(graph.list, nn.ModuleList) and isinstance(graph.seq, nn.Sequential)


def test_a_layer_that_is_called_twice_is_one():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            return self.fc(self.fc(x).relu())

    graph, names = layered(Twice(), torch.ones(2, 4))
    assert names == ("fc",)
    assert len(graph.graph.find_nodes(op="call_module")) == 2


def test_one_weight_in_layers_of_different_settings():
    class Strides(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 3, 3))

        def forward(self, x):
            a = torch.conv1d(x, self.weight)
            return a[..., ::2] + torch.conv1d(x, self.weight, stride=2)

    model, x = Strides(), torch.randn(2, 3, 8)
    model.weight.data = torch.randn(4, 3, 3)
    graph, names = layered(model, x)
    assert len(names) == 2 and len(set(names)) == 2
    assert torch.equal(graph(x), model(x))


@pytest.mark.slow
def test_functional_and_decomposed_programs():
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Module()
            self.inner.in_proj_weight = nn.Parameter(torch.randn(6, 4))
            self.conv = nn.Conv2d(3, 4, 3, padding="same", bias=False)

        def forward(self, x, y):
            return nn.functional.linear(x, self.inner.in_proj_weight), self.conv(y)

    model, args = Functional().eval(), (torch.randn(2, 4), torch.randn(2, 3, 5, 5))
    program = torch.export.export(model, args)
    for each in (program, program.run_decompositions()):
        graph = import_graph(each)
        assert set(with_layers(graph)) == {"inner.in_proj", "conv"}
        for ours, theirs in zip(graph(*args), model(*args), strict=True):
            torch.testing.assert_close(ours, theirs)


def test_what_is_computed_from_a_weight_is_no_layer():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4))

        def forward(self, x):
            return nn.functional.linear(x, self.weight * 2)

    assert layered(Tied(), torch.ones(2, 4))[1] == ()


@pytest.mark.slow
def test_padding_of_other_modes_belongs_to_the_convolution():
    graph, _ = layered(models.Net(), torch.randn(2, 3, 8, 8))
    conv = graph.get_submodule("c3")
    assert conv.padding_mode == "reflect" and not [
        n for n in graph.graph.nodes if "pad" in str(n.target)
    ]


@pytest.mark.slow
def test_for_training_batch_norms_and_dropouts_are_layers():
    graph, names = layered(models.Net(), torch.randn(2, 3, 8, 8), training=True)
    assert {"b1", "b2", "drop"} <= set(names)
    x = torch.randn(2, 3, 8, 8)
    before = graph.b1.running_mean.clone()
    graph.train()
    assert not torch.equal(graph(x), graph(x))  # dropout
    assert not torch.equal(graph.b1.running_mean, before)
    graph.eval()
    assert torch.equal(graph(x), graph(x))


def test_nodes_keep_where_they_came_from():
    graph = import_graph(models.bert()[1])
    with_layers(graph)
    for node in graph.graph.find_nodes(op="call_module"):
        assert scope(node) == node.target and node.meta["val"] is not None
