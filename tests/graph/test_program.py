# SPDX-License-Identifier: BSD-3-Clause
"""Programs come in and go out: shared tensors, free sizes, examples, and what is refused."""

import pytest
import torch
from torch import fx, nn
from torch.export import Dim

import blockscale as bs
from blockscale.graph.pickled import state
from blockscale.graph.program import example_of, exported, import_graph, same
from tests.support import graph_models as models
from tests.support.graph_models import run


def test_a_program_becomes_a_graph_over_the_same_tensors():
    model, program, batches = models.bert()
    graph = import_graph(program)
    assert torch.equal(run(graph, batches[1]), run(model, batches[1]))
    name = "encoder.layer.0.output.dense.weight"
    assert graph.get_parameter(name).data_ptr() == model.get_parameter(name).data_ptr()
    known = state(graph)
    assert known.stage == "imported" and known.names[0] == next(iter(program.state_dict))
    graph.train()  # what torch.export gives refuses this
    assert graph.training


@pytest.mark.slow
def test_sizes_and_their_ranges_come_back():
    _, program, _ = models.gpt2()
    again = exported(import_graph(program))
    bounds = {str(r.upper) for r in again.range_constraints.values()}
    assert "32" in bounds
    many = (torch.randint(0, 50, (5, 31)),)
    assert torch.equal(run(again.module(), many), run(program.module(), many))
    with pytest.raises(Exception, match=r"32|[Gg]uard"):
        again.module()(torch.randint(0, 50, (5, 33)))


def test_one_symbol_of_two_inputs_stays_one():
    class Two(nn.Module):
        def forward(self, a, *, b):
            return a + b

    rows = Dim("rows")
    program = torch.export.export(
        Two(), (torch.ones(3, 2),), {"b": torch.ones(3, 2)},
        dynamic_shapes={"a": {0: rows}, "b": {0: rows}},
    )  # fmt: skip
    again = exported(import_graph(program))
    shapes = [n.meta["val"].shape[0] for n in again.graph.find_nodes(op="placeholder")]
    assert str(shapes[0]) == str(shapes[1]) and not isinstance(shapes[0], int)
    assert again.module()(torch.ones(7, 2), b=torch.ones(7, 2)).shape == (7, 2)


def test_an_example_is_made_from_the_inputs_where_there_is_none():
    graph = import_graph(models.bert()[1])
    state(graph).example = None
    args, kwargs = example_of(graph)
    assert args == () and {n: (t.shape, t.dtype) for n, t in kwargs.items()} == {
        name: (t.shape, t.dtype) for name, t in models.bert()[2][0].items()
    }
    plain = fx.symbolic_trace(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="not known"):
        example_of(import_graph(plain))


def test_copies_do_not_change_what_they_are_of():
    graph = import_graph(models.net()[1])
    other = same(graph)
    for node in list(other.graph.nodes):
        if node.op == "call_function" and not node.users:
            other.graph.erase_node(node)
    node = next(iter(other.graph.find_nodes(op="placeholder")))
    node.meta["val"] = None
    assert next(iter(graph.graph.find_nodes(op="placeholder"))).meta["val"] is not None


@pytest.mark.parametrize("wrong", [nn.Linear(2, 2), "model.pt2", None])
def test_what_is_no_program(wrong):
    with pytest.raises(TypeError, match=r"expected a program, found .*: export the model first"):
        bs.graph.prepare(wrong, "int8")


def test_a_prepared_graph_is_not_exported(tmp_path):
    prepared = bs.graph.prepare(models.net()[1], "int8")
    with pytest.raises(ValueError, match="a prepared graph"):
        bs.export.program(prepared, tmp_path / "model.pt2")
    with pytest.raises(ValueError, match="a prepared graph cannot be fused"):
        bs.graph.fuse(prepared)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_an_example_that_does_not_fit(tmp_path):
    prepared = bs.graph.prepare(models.net()[1], "int8")
    graph = bs.graph.convert(prepared)
    with pytest.raises(ValueError, match=r"cannot be called with the example \(float32 \[2, 3\]\)"):
        bs.export.program(graph, tmp_path / "model.pt2", torch.ones(2, 3))
    assert not list(tmp_path.iterdir())
