# SPDX-License-Identifier: BSD-3-Clause
"""Tensors that a graph holds."""

import pytest
import torch
from torch import nn

from blockscale.graph.constants import drop_unused, equal_bits, get, is_constant, put_constant, same
from tests.graph.passes.nets import exported

X = torch.randn(2, 3)


def graph_of_two():
    graph = exported(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5)), X)
    line = next(n for n in graph.graph.nodes if n.op == "call_function")
    return graph, line


def test_what_is_put_is_found() -> None:
    graph, line = graph_of_two()
    made = put_constant(graph, "0.input.scale", torch.ones(2), like=line)
    assert is_constant(made) and made.target == "0.input.scale"
    assert torch.equal(get(graph, made), torch.ones(2))
    assert tuple(made.meta["val"].shape) == (2,)
    assert made.meta["nn_module_stack"] == line.meta["nn_module_stack"]


def test_a_tensor_on_the_way_gives_way_if_nothing_reads_it() -> None:
    graph, line = graph_of_two()
    assert (
        put_constant(graph, "0.weight.codes", torch.ones(2), like=line).target == "0.weight_1.codes"
    )
    weight, line.args = line.args[1], (line.args[0], line.args[0], line.args[2])
    graph.graph.erase_node(weight)
    made = put_constant(graph, "0.weight.codes", torch.ones(2), like=line)
    assert made.target == "0.weight.codes"
    assert (
        put_constant(graph, "0.weight.codes", torch.ones(2), like=line).target == "0.weight.codes_1"
    )


def test_a_name_that_is_read_is_not_taken() -> None:
    graph, line = graph_of_two()
    weight = get(graph, line.args[1])
    made = put_constant(graph, "0.weight", torch.ones(2), like=line)
    assert made.target == "0.weight_1"
    assert get(graph, line.args[1]) is weight
    assert put_constant(graph, "0", torch.ones(2), like=line).target == "0_1"  # a module lies there


def test_a_name_that_nothing_reads_is_taken_without_writing_the_tensor() -> None:
    graph, line = graph_of_two()
    weight = get(graph, line.args[1])
    before = weight.detach().clone()
    old = line.args[1]
    line.args = (
        line.args[0],
        put_constant(graph, "new", torch.ones(4, 3), like=line),
        line.args[2],
    )
    graph.graph.erase_node(old)
    assert put_constant(graph, "0.weight", torch.zeros(4, 3), like=line).target == "0.weight"
    assert torch.equal(weight, before)
    assert not isinstance(graph.get_submodule("0").weight, nn.Parameter)


def test_what_nothing_reads_goes() -> None:
    graph, line = graph_of_two()
    unused = put_constant(graph, "left.over", torch.ones(1), like=line)
    graph.register_buffer("never", torch.ones(1))
    assert unused in graph.graph.nodes
    assert drop_unused(graph) == 3  # a node and two tensors
    assert not hasattr(graph, "never") and not hasattr(graph, "left")
    assert {name for name, _ in graph.named_parameters()} == {
        "0.weight", "0.bias", "1.weight", "1.bias",
    }  # fmt: skip
    assert drop_unused(graph) == 0


def test_equal_is_to_the_bit() -> None:
    nan = torch.tensor([float("nan"), 0.0])
    assert equal_bits(nan, nan.clone())
    assert not equal_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not equal_bits(torch.ones(2), torch.ones(2, 1))
    assert not equal_bits(torch.ones(2), torch.ones(2, dtype=torch.float64))
    assert equal_bits(torch.tensor(3.0), torch.tensor(3.0))
    graph, line = graph_of_two()
    a, b = (put_constant(graph, name, torch.ones(3), like=line) for name in "ab")
    assert same(graph, a, b) and same(graph, a, a) and same(graph, None, None)
    assert not same(graph, a, None) and not same(graph, a, line)


def test_what_is_no_constant_is_refused() -> None:
    graph, line = graph_of_two()
    with pytest.raises(ValueError, match="expected a node that reads a constant, found"):
        get(graph, line)


@pytest.mark.slow
def test_a_name_may_be_that_of_any_attribute_of_modules() -> None:
    """`to.output.scale` of an op `to`, and whatever else modules and graphs have."""
    graph, line = graph_of_two()
    taken = {name for name in dir(graph) if not name.startswith("__")}
    assert {"to", "type", "forward", "train", "half", "code", "call_super_init"} <= taken
    for name in taken:
        before = getattr(graph, name)
        made = put_constant(graph, f"{name}.scale", torch.ones(2), like=line)
        assert made.target == f"{name}_1.scale" and get(graph, made).shape == (2,)
        assert put_constant(graph, name, torch.ones(3), like=line).target == f"{name}_2"
        assert getattr(graph, name) == before, name
