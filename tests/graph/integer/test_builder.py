# SPDX-License-Identifier: BSD-3-Clause
"""The integer graph while it is being built: names, steps and sums."""

import pytest
import torch
from torch import Tensor, fx, nn

from blockscale.graph.integer.builder import Builder, Sum
from blockscale.graph.integer.layers import Fixed, NotIntegerError
from blockscale.graph.integer.steps import Dequantize


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return torch.add(self.act(x), 1).view(-1)


@pytest.fixture
def started() -> tuple[Builder, dict[str, fx.Node]]:
    """A builder that knows the input x = [2, 3]."""
    model = Model()
    nodes = {node.name: node for node in fx.Tracer().trace(model).nodes}
    builder = Builder(model)
    builder.add_input(nodes["x"], torch.tensor([2.0, 3.0]))
    return builder, nodes


def half(largest: int) -> Fixed:
    return Fixed(torch.tensor(-1, dtype=torch.int32), 0, largest)


def test_nodes_are_told_by_module_function_or_method(started) -> None:
    builder, nodes = started
    names = [builder.name(nodes[name]) for name in ("act", "add", "view")]
    assert names == ["'act' (ReLU)", "'add' (add)", "'view' (view)"]
    assert isinstance(builder.module(nodes["act"]), nn.ReLU)
    assert builder.module(nodes["add"]) is None


def test_a_step_is_computed_on_the_example_and_has_a_name_of_its_own(started) -> None:
    builder, nodes = started
    [x] = builder.inputs(nodes["act"])
    assert x.fixed is None
    values = [builder.add_step(nodes["act"], nn.ReLU(), [x], half(9)) for _ in range(2)]
    assert [value.node.target for value in values] == ["act_relu", "act_relu_"]
    assert values[0].example.tolist() == [2.0, 3.0]
    builder.graph.output(values[1].node)
    module = fx.GraphModule(builder.modules, builder.graph)
    assert module(torch.tensor([-1.0, 4.0])).tolist() == [0.0, 4.0]


def test_a_call_is_copied_with_what_its_arguments_became(started) -> None:
    builder, nodes = started
    builder.remember(nodes["act"], builder.value(nodes["x"]))
    value = builder.add_same(nodes["add"], None)
    assert value.example.tolist() == [3.0, 4.0]
    builder.remember(nodes["add"], value)
    assert builder.add_same(nodes["view"], None).example.shape == (2,)


def test_floats_and_numbers_are_no_integers(started) -> None:
    builder, nodes = started
    builder.remember(nodes["act"], builder.value(nodes["x"]))
    with pytest.raises(NotIntegerError, match=r"'act' \(ReLU\) takes floats: only a"):
        builder.integers(nodes["act"], builder.value(nodes["x"]))
    assert builder.argument(nodes["add"], 0) == builder.value(nodes["x"])
    with pytest.raises(NotIntegerError, match=r"'add' \(add\) takes 1, expected a value"):
        builder.argument(nodes["add"], 1)


def test_sums_are_told_in_order_and_stay_in_int32(started) -> None:
    builder, nodes = started
    builder.add_sums(nodes["act"], half(2**24))
    builder.add_sums(nodes["add"], half(2**24 + 1))
    assert builder.sums == [Sum("act", "ReLU", 2**24, True), Sum("add", "add", 2**24 + 1, False)]
    with pytest.raises(NotIntegerError, match=r"sums of 'add' \(add\) can reach 2147483648"):
        builder.add_sums(nodes["add"], half(2**31))
    assert len(builder.sums) == 2
    assert Dequantize(torch.tensor(-1, dtype=torch.int32), 0)(torch.tensor([3])).tolist() == [1.5]
