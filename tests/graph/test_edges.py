# SPDX-License-Identifier: BSD-3-Clause
"""Edges of ops: which tensors they are on, what they see, and when they begin to quantize."""

import pytest
import torch

import blockscale as bs
from blockscale.calibration.observers import make
from blockscale.graph.edges import Edge, places
from blockscale.graph.program import import_graph
from tests.support import graph_models as models

INT8 = bs.parse("int8:tensor:fp32")


def test_an_edge_lets_pass_then_quantizes():
    edge, x = Edge(INT8, make("min_max", INT8), "the input of add"), torch.randn(4, 8)
    assert torch.equal(edge(x), x) and edge.ready
    edge.settle()
    expected = bs.fake_quantize(x, INT8)
    assert torch.equal(edge(x), expected)
    assert torch.equal(edge(2 * x), bs.fake_quantize(2 * x, INT8, scale=edge.scale))


def test_one_that_has_seen_nothing():
    edge = Edge(INT8, make("min_max", INT8), "the input of add")
    assert not edge.ready
    with pytest.raises(ValueError, match="saw no data"):
        edge.settle()
    dynamic = Edge(bs.parse("int8_token"), None, "the input of add")
    assert dynamic.ready
    dynamic.settle()
    x = torch.randn(3, 4)
    assert torch.equal(dynamic(x), bs.fake_quantize(x, "int8_token"))


def test_for_training_it_quantizes_from_the_start_and_passes_gradients():
    edge = Edge(INT8, make("min_max", INT8), "the input of add", fake=True)
    x = torch.randn(4, 8, requires_grad=True)
    edge(x).sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))
    edge.eval()
    before = edge.scale.clone()
    edge(10 * x.detach())
    assert torch.equal(edge.scale, before)


def test_what_it_notes():
    edge = Edge(INT8, make("min_max", INT8), "the input of add")
    edge(torch.tensor([1.0, float("nan"), float("inf")]))
    assert edge.notes() == ["1 NaN of 3 values, left out", "1 infinite of 3 values, left out"]


def test_places_have_the_names_of_modules():
    graph = import_graph(models.bert()[1])
    recipe = bs.Recipe(
        rules={"op:add@*.attention.*": {"output": "int8"}, "op:gel?": {"input": "int8"}}
    )
    found, unmatched = places(graph, recipe)
    assert unmatched == []
    names = [place.name for place in found]
    assert "encoder.layer.0.attention.output.add" in names
    assert "encoder.layer.0.intermediate.intermediate_act_fn.gelu" in names
    assert not [n for n in names if ".attention." not in n and n.endswith("add")]


def test_parameters_and_indices_get_none():
    _, program, _ = models.bert()
    rules = {
        "op:layer_norm": {"input": "int8:tensor:fp32"},
        "op:embedding": {"input": "int8:tensor:fp32"},
    }
    with pytest.warns(UserWarning, match="'op:embedding' of the recipe matches nothing"):
        prepared = bs.graph.prepare(program, bs.Recipe("int8_channel", rules=rules))
    names = {n for n, m in prepared.named_modules() if isinstance(m, Edge)}
    assert names and all(name.endswith("layer_norm.input") for name in names)


@pytest.mark.slow
def test_joined_tensors_and_several_readers():
    class Join(torch.nn.Module):
        def forward(self, x, y):
            z = torch.cat([x, y], 1)
            return z + 1, z.relu()

    x, y = torch.randn(2, 3), torch.randn(2, 4)
    program = torch.export.export(Join(), (x, y))
    rules = {"op:cat": {"input": "int8:tensor:fp32", "output": "int8:token:fp32"}}
    prepared = bs.graph.prepare(program, bs.Recipe(rules=rules), observer="min_max")
    prepared(x, y)
    graph = bs.graph.convert(prepared)
    assert {"cat.tensors_0.scale", "cat.tensors_1.scale"} <= set(graph.state_dict())
    joined = torch.cat([bs.fake_quantize(t, "int8:tensor:fp32") for t in (x, y)], 1)
    joined = bs.fake_quantize(joined, "int8:token:fp32")
    assert torch.equal(graph(x, y)[0], joined + 1) and torch.equal(graph(x, y)[1], joined.relu())


class Casts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 2)  # training takes models with a layer

    def forward(self, x):
        return self.fc(x), (x > 0).float() * x, x.half(), x.type_as(x.half()), x.float().clone()


def expected_of_casts(x):
    q = lambda t: bs.fake_quantize(t, INT8)  # noqa: E731
    return q(q((x > 0).float()) * x), q(x.half()), q(x.half()), q(x)


@pytest.mark.slow
@pytest.mark.parametrize("qat", [False, True])
def test_casts_are_ops_like_others(qat):
    """Their ops have names that every module has as an attribute: to, type_as, half."""
    x = torch.randn(3, 4)
    program = torch.export.export(Casts(), (x,))
    recipe = bs.Recipe("int8", rules={"op:*": {"output": "int8:tensor:fp32"}})
    prepared = bs.graph.prepare(program, recipe, observer="min_max", qat=qat)
    prepared.train(qat)(x)
    graph = bs.graph.convert(prepared.eval())
    assert "to_1.output.scale" in graph.state_dict()
    names = [entry.name for entry in bs.graph.ledger(graph)]
    assert "to" in names and len(set(names)) == len(names)
    for made, expected in zip(graph(x)[1:], expected_of_casts(x), strict=True):
        assert made.dtype == expected.dtype and torch.equal(made, expected)


def test_without_rows_there_is_nothing_to_scale():
    edge = Edge(INT8, make("min_max", INT8), "the input of add", fake=True)
    assert edge(torch.zeros(0, 8)).shape == (0, 8) and not edge.ready
    x = torch.randn(4, 8)
    assert torch.equal(edge(x), bs.fake_quantize(x, INT8))
    assert edge(torch.zeros(0, 8)).shape == (0, 8)


class Several(torch.nn.Module):
    """Ops that give several tensors, integers, or nothing that was given a float."""

    def forward(self, x):
        y = torch.softmax(x, -1)
        values, places = y.topk(3, -1)
        a, b = x.split(4, -1)
        pooled, where = torch.nn.functional.max_pool1d(x[None], 2, return_indices=True)
        more = values * 2, y.topk(3, -1)[0]
        return values, places, a * b, x.argmax(-1), pooled, where, torch.zeros(3), *more


@pytest.mark.slow
@pytest.mark.parametrize("qat", [False, True])
def test_ops_of_several_tensors_and_of_indices(qat):
    x = torch.randn(4, 8)
    program = torch.export.export(Several(), (x,))
    recipe = bs.Recipe(rules={"op:*": {"input": INT8}})
    prepared = bs.graph.prepare(program, recipe, observer="min_max", qat=qat)  # ops alone
    prepared.train(qat)(x)
    graph = bs.graph.convert(prepared.eval())
    given = {e.name: e.input for e in bs.graph.ledger(graph).quantized}
    ops = ("topk", "split", "argmax", "max_pool1d_with_indices", "topk_2")
    assert [given[op] for op in ops] == ["int8:tensor:fp32"] * 5 and "getitem" not in given
    assert {f"{op}.input.scale" for op in ops} <= set(graph.state_dict())
    kept = [(e.name, e.reason) for e in bs.graph.ledger(graph).kept]
    assert ("zeros", "its rule sets a format for inputs, and it has no float input") in kept
    q = lambda t: bs.fake_quantize(t, INT8)  # noqa: E731
    y = torch.softmax(q(x), -1)
    y = bs.fake_quantize(y, INT8, scale=graph.get_buffer("topk.input.scale"))
    with torch.no_grad():
        found = graph(x)
    assert torch.equal(found[0], y.topk(3, -1)[0]) and torch.equal(found[1], y.topk(3, -1)[1])
    assert torch.equal(found[3], q(x).argmax(-1))
    pooled, where = torch.nn.functional.max_pool1d(q(x[None]), 2, return_indices=True)
    assert torch.equal(found[4], pooled) and torch.equal(found[5], where)
    if qat:
        assert all(torch.equal(a, b) for a, b in zip(found, prepared(x), strict=True))


@pytest.mark.slow
def test_several_results_get_a_format_each():
    x = torch.randn(4, 8)
    recipe = bs.Recipe(rules={"op:split": {"output": INT8}, "op:topk": {"output": INT8}})
    prepared = bs.graph.prepare(torch.export.export(Several(), (x,)), recipe, observer="min_max")
    prepared(x)
    graph = bs.graph.convert(prepared)
    scales = {"split.output_0", "split.output_1", "topk.output_0", "topk_2.output_0"}
    assert {f"{name}.scale" for name in scales} == set(graph.state_dict())
    a, b = (bs.fake_quantize(t, INT8) for t in x.split(4, -1))
    values = bs.fake_quantize(torch.softmax(x, -1).topk(3, -1)[0], INT8)
    with torch.no_grad():
        found = graph(x)
    assert torch.equal(found[2], a * b) and torch.equal(found[0], values)
    assert torch.equal(found[-2], values * 2)  # every reader
    with pytest.warns(UserWarning, match="'op:argmax' of the recipe matches nothing"):
        bs.graph.prepare(
            torch.export.export(Several(), (x,)), bs.Recipe(rules={"op:argmax": {"output": INT8}})
        )
