# SPDX-License-Identifier: BSD-3-Clause
"""The registry of rules: files of a folder, found by themselves."""

import pathlib

import pytest
import torch
from torch import fx, nn

from blockscale.graph.integer import rules
from blockscale.graph.integer.convert import to_integer
from blockscale.graph.integer.layers import NotIntegerError
from blockscale.graph.integer.rules import as_module, rule_for
from tests.support.integer_models import between

FILES = {path.stem for path in pathlib.Path(rules.__file__).parent.glob("*.py")} - {"__init__"}


def test_every_file_is_found_and_has_a_test() -> None:
    assert {rule.__module__.rpartition(".")[2] for rule in rules.rules().values()} == FILES
    tests = {path.stem.removeprefix("test_") for path in pathlib.Path(__file__).parent.glob("*.py")}
    assert tests >= FILES


def test_calls_that_are_modules_have_a_rule_as_such() -> None:
    def call(x):
        return torch.relu(x), torch.flatten(x, 1), x.relu(), x.sum()

    nodes = {node.name: node for node in fx.symbolic_trace(call).graph.nodes}
    assert type(as_module(nodes["relu"])) is type(as_module(nodes["relu_1"])) is nn.ReLU
    flatten = as_module(nodes["flatten"])
    assert (flatten.start_dim, flatten.end_dim) == (1, -1)
    assert as_module(nodes["sum_1"]) is None
    for made in (nn.ReLU, nn.Flatten):
        assert rule_for(made) is not None
    assert rule_for(nn.GELU) is None


def test_a_new_rule_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Absolute values would be a rule of their own; here they pass on what is given."""
    model, x = between(torch.abs)
    with pytest.raises(NotIntegerError, match=r"'abs_1' \(abs\) has no integer form here"):
        to_integer(model, x)
    monkeypatch.setitem(rules.rules(), torch.abs, lambda builder, node, _: builder.inputs(node)[0])
    model.operation = None
    twin, _ = between(nn.Identity())
    twin.first, twin.last = model.first, model.last
    model.operation = torch.abs
    assert torch.equal(to_integer(model, x)(x), to_integer(twin, x)(x))
