# SPDX-License-Identifier: BSD-3-Clause
"""Builders and readers of nodes."""

import pytest
import torch
from torch import Tensor, nn

from blockscale.graph import nodes
from blockscale.graph.nodes import aten, describe, op_name, ours, scope, source_line
from blockscale.graph.program import import_graph
from tests.graph.passes.nets import exported
from tests.support import graph_models as models

X = torch.randn(2, 64)


class Net(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        scale = torch.ones(1, 1)
        codes = ours.quantize(x, scale, None, None, "int8:tensor:fp32")
        return ours.dequantize(codes, scale, None, None, "int8:tensor:fp32", 64, torch.float32)


def first(graph, packet):
    return next(nodes.each_call(graph, packet))


def test_a_call_knows_its_shape_and_place() -> None:
    graph = exported(nn.Sequential(nn.Linear(64, 3)), X)
    line = first(graph, aten.linear)
    x, weight = line.args[:2]
    made = nodes.call(graph, aten.relu.default, (x,), like=line)
    assert nodes.same_sizes(nodes.shape(made), nodes.shape(x))
    assert isinstance(made.meta["val"].shape[0], torch.SymInt)
    assert made.meta["nn_module_stack"] == line.meta["nn_module_stack"]
    assert weight.op == "get_attr"


def test_a_call_that_does_not_fit_is_refused() -> None:
    graph = exported(nn.Sequential(nn.Linear(64, 3)), X)
    line = first(graph, aten.linear)
    with pytest.raises(RuntimeError):
        nodes.call(graph, aten.view.default, (line, [7, 3]), like=line.next)


def test_arguments_have_names_and_defaults() -> None:
    graph = exported(Net(), X)
    given = nodes.arguments(first(graph, ours.quantize))
    assert list(given) == ["x", "scale", "zero_point", "outer", "fmt", "seed", "more"]
    assert given["fmt"] == "int8:tensor:fp32" and given["seed"] is None
    with pytest.raises(ValueError, match="expected a node that calls a torch op, found"):
        nodes.arguments(next(iter(graph.graph.nodes)))


def test_primitives_are_read_back() -> None:
    graph = exported(Net(), X)
    q, dq = first(graph, ours.quantize), first(graph, ours.dequantize)
    read = nodes.quantize_of(q)
    assert read is not None and read.x.op == "placeholder" and read.by.fmt == "int8:tensor:fp32"
    back = nodes.dequantize_of(dq)
    assert back is not None and back.operand.codes is q and back.operand.size == 64
    assert back.dtype == torch.float32
    assert back.operand.scale is read.by.scale
    assert nodes.quantize_of(dq) is None and nodes.dequantize_of(q) is None
    assert nodes.dequantize_of(None) is None


def test_sizes_are_equal_for_every_batch_or_not() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.reshape(x.shape[0] * 2, 32)

    graph = exported(Two(), X)
    x = next(n for n in graph.graph.nodes if n.op == "placeholder")
    y = next(n for n in graph.graph.nodes if n.op == "output").args[0][0]
    assert nodes.same_sizes(nodes.shape(x), nodes.shape(x))
    assert not nodes.same_sizes(nodes.shape(x), nodes.shape(y))
    assert not nodes.same_sizes(None, nodes.shape(y))
    assert nodes.is_known(nodes.shape(y)[0] == 2 * nodes.shape(x)[0])


# What nodes are called: the module they came from, the op, and the line of the model's source.


def nodes_of(program, word):
    graph = import_graph(program)
    return [n for n in graph.graph.nodes if n.op == "call_function" and word in str(n.target)]


def test_scope_op_and_line():
    node = nodes_of(models.bert()[1], "gelu")[0]
    assert scope(node) == "encoder.layer.0.intermediate.intermediate_act_fn"
    assert op_name(node) == "gelu"
    assert "activations.py:" in source_line(node) and "self.act(input)" in source_line(node)
    assert describe(node).startswith("gelu of encoder.layer.0.intermediate.intermediate_act_fn (")


def test_the_line_is_the_models_own_and_not_torchs():
    node = nodes_of(models.net()[1], "conv2d")[0]
    assert "models.py:" in source_line(node) and "self.c1(x)" in source_line(node)


def test_ops_of_the_model_itself_and_in_place():
    class Model(nn.Module):
        def forward(self, x):
            return (x + 1).relu_().sum()

    program = torch.export.export(Model(), (torch.ones(3),))
    names = [op_name(n) for n in import_graph(program).graph.nodes if n.op == "call_function"]
    assert names == ["add", "relu", "sum"]
    assert scope(nodes_of(program, "add")[0]) == ""


def test_a_node_that_nothing_is_known_of():
    graph = torch.fx.symbolic_trace(lambda x: torch.relu(x))
    node = next(n for n in graph.graph.nodes if n.op == "call_function")
    assert (scope(node), op_name(node), source_line(node)) == ("", "relu", "")
    assert describe(node) == "relu"
    assert op_name(next(iter(graph.graph.nodes))) == "placeholder"
