# SPDX-License-Identifier: BSD-3-Clause
"""What nodes are called: the module they came from, the op, and the line of the model's source."""

import torch
from torch import nn

from blockscale.graph.names import described, op_name, scope, source_line
from blockscale.graph.program import imported
from tests.support import graph_models as models


def nodes_of(program, word):
    graph = imported(program)
    return [n for n in graph.graph.nodes if n.op == "call_function" and word in str(n.target)]


def test_scope_op_and_line():
    node = nodes_of(models.bert()[1], "gelu")[0]
    assert scope(node) == "encoder.layer.0.intermediate.intermediate_act_fn"
    assert op_name(node) == "gelu"
    assert "activations.py:" in source_line(node) and "self.act(input)" in source_line(node)
    assert described(node).startswith("gelu of encoder.layer.0.intermediate.intermediate_act_fn (")


def test_the_line_is_the_models_own_and_not_torchs():
    node = nodes_of(models.net()[1], "conv2d")[0]
    assert "models.py:" in source_line(node) and "self.c1(x)" in source_line(node)


def test_ops_of_the_model_itself_and_in_place():
    class Model(nn.Module):
        def forward(self, x):
            return (x + 1).relu_().sum()

    program = torch.export.export(Model(), (torch.ones(3),))
    names = [op_name(n) for n in imported(program).graph.nodes if n.op == "call_function"]
    assert names == ["add", "relu", "sum"]
    assert scope(nodes_of(program, "add")[0]) == ""


def test_a_node_that_nothing_is_known_of():
    graph = torch.fx.symbolic_trace(lambda x: torch.relu(x))
    node = next(n for n in graph.graph.nodes if n.op == "call_function")
    assert (scope(node), op_name(node), source_line(node)) == ("", "relu", "")
    assert described(node) == "relu"
    assert op_name(next(iter(graph.graph.nodes))) == "placeholder"
