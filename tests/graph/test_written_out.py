# SPDX-License-Identifier: BSD-3-Clause
"""Layers written out one by one give the graph that an export of the whole gives."""

from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.export import Dim

import blockscale as bs
from blockscale.graph import conversion
from blockscale.graph.nodes import scope, source_line, value
from blockscale.graph.pickled import state
from blockscale.graph.preparation import preparation
from blockscale.graph.program import import_graph, same, traced, written_out
from tests.support import graph_models as models
from tests.support.graph_models import run


def with_layers(prepared: Any) -> tuple[fx.GraphModule, Any]:
    """The graph of quantized layers that `convert` writes out, and what settles its edges."""
    made = conversion._trained if preparation(prepared).qat else conversion._calibrated
    model, _ = made(prepared)
    return model, conversion._SettledEdges(model)


def lines(graph: fx.GraphModule) -> list[Any]:
    """Each node by what it calls, the numbers of its arguments, what it gives and whence it is."""
    numbers = {node: i for i, node in enumerate(graph.graph.nodes)}
    return [
        (node.op, "" if node.op == "placeholder" else str(node.target),
         str(fx.node.map_arg((node.args, node.kwargs), lambda each: Number(numbers[each]))),
         text(value(node)), scope(node), source_line(node))
        for node in graph.graph.nodes
    ]  # fmt: skip


class Number(int):
    """A node's, which is written as such."""


def text(given: Any) -> str:
    if not isinstance(given, torch.Tensor):
        return str(given)
    return f"{given.dtype} {given.device} {tuple(given.shape)} {given.stride()}"


def tensors(graph: fx.GraphModule) -> dict[str, torch.Tensor]:
    named = dict[str, torch.Tensor](graph.named_parameters(remove_duplicate=False))
    return named | dict(graph.named_buffers(remove_duplicate=False))


class Tied(nn.Module):
    """A table that the head shares."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.table = nn.Linear(32, 50, bias=False), nn.Embedding(50, 32)
        self.table.weight = self.head.weight

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(torch.relu(self.table(indices)))
        return result


def tied() -> tuple[nn.Module, torch.export.ExportedProgram, list[tuple[torch.Tensor, ...]]]:
    model, batches = Tied().eval(), [(torch.randint(0, 50, (k, 4)),) for k in (2, 3)]
    sizes = ({0: Dim("rows")},)
    return model, torch.export.export(model, batches[0], dynamic_shapes=sizes), batches


MODELS = {"net": models.net, "bert": models.bert, "gpt2": models.gpt2, "tied": tied}
NETS = [
    ("net", bs.Recipe("int8_channel", "int8:tensor:fp32", "int8_token", bias="int32"), {}),
    ("net", bs.Recipe("nf4", rules={"op:softmax": {"input": "int8:tensor:fp32"}}), {}),
    ("net", bs.Recipe("int8_channel", "int8:tensor:fp32"), {"qat": True}),
    ("tied", bs.Recipe("int8", "int8_token"), {}),
]
BERTS = [
    ("gpt2", bs.Recipe("int8", "int8_token"), {}),
    ("bert", bs.Recipe("int4:group16:fp32", "uint8:tensor:fp32:asym", "int8:tensor:fp32"), {}),
    ("bert", bs.Recipe("mxfp4", rules={"op:add": {"input": "mxfp8", "output": "int8_token"}}), {}),
    ("gpt2", bs.Recipe("int4:group16:fp32", "nvfp4"), {}),
]


@pytest.mark.slow
@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("name", "recipe", "options"),
    [*NETS, *(pytest.param(*each, marks=pytest.mark.slow) for each in BERTS)],
)
def test_it_is_what_a_whole_export_gives(name: str, recipe: Any, options: dict[str, Any]) -> None:
    _, program, batches = MODELS[name]()
    prepared = bs.graph.prepare(program, recipe, **options)
    for batch in batches:
        run(prepared.train() if options else prepared, batch)
    model, edges = with_layers(prepared)
    with edges, torch.no_grad():
        ours, whole = written_out(model), import_graph(traced(model))
    assert ours is not None
    for graph in (ours, whole):
        conversion.passes.apply(graph, (conversion.passes.clean,))
        conversion.expand(graph)
    assert lines(ours) == lines(whole)
    found, expected = tensors(ours), tensors(whole)
    assert list(found) == list(expected)
    for key, tensor in found.items():
        assert type(tensor) is type(expected[key])
        assert torch.equal(tensor, expected[key]), key


def calling(module: nn.Module, like: torch.Tensor) -> fx.GraphModule:
    """A program that calls a module where it doubled x [rows, 8], of any number of rows."""

    class Double(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x * 2)

    program = torch.export.export(Double(), (like,), dynamic_shapes=({0: Dim("rows")},))
    graph = same(import_graph(program))
    graph.meta["blockscale"] = state(import_graph(program))
    node = next(each for each in graph.graph.nodes if str(each.target).startswith("aten.mul"))
    graph.add_module("layer", module)
    with graph.graph.inserting_before(node):
        call = graph.graph.call_module("layer", (node.args[0],))
    call.meta = dict(node.meta)
    node.replace_all_uses_with(call)
    graph.graph.erase_node(node)
    graph.recompile()
    return graph.eval()


class Layer(nn.Module):
    """Does as told; `same` keeps sizes."""

    def __init__(self, does: Any):
        super().__init__()
        self.does, self.weight = does, nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.does(x * self.weight)
        return result


X = torch.randn(3, 8)


def test_a_layer_becomes_its_ops() -> None:
    graph = calling(Layer(torch.sigmoid), X)
    made = written_out(graph)
    assert made is not None
    assert not made.graph.find_nodes(op="call_module")
    assert list(dict(made.named_parameters())) == ["layer.weight"]
    assert made.get_parameter("layer.weight") is graph.get_parameter("layer.weight")
    assert type(made.get_submodule("layer")) is nn.Module
    for rows in (2, 7):
        x = torch.randn(rows, 8)
        assert torch.equal(made(x), graph(x))


REFUSED = {
    "another dtype": lambda x: x.half(),
    "another shape": lambda x: x.sum(1, keepdim=True),
    "another layout": lambda x: x.t().contiguous().t(),
    "several results": lambda x: (x, x),
    "a constant of its own": lambda x: x + torch.tensor([1.5] * 8),
    "what it asks of sizes": lambda x: x + 1 if x.shape[0] < 100 else x,
}


@pytest.mark.some(6)
@pytest.mark.parametrize("does", REFUSED.values(), ids=REFUSED)
def test_what_needs_a_whole_export(does: Any) -> None:
    assert written_out(calling(Layer(does), X)) is None


def test_a_graph_that_knows_no_sizes() -> None:
    graph = calling(Layer(torch.sigmoid), X)
    for node in graph.graph.nodes:
        node.meta.pop("val", None)
    assert written_out(graph) is None


@pytest.mark.slow
def test_convert_exports_where_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    _, program, batches = models.net()
    prepared = bs.graph.prepare(program, "int8_channel")
    ours = bs.graph.convert(prepared)
    monkeypatch.setattr(conversion, "written_out", lambda model: None)
    whole = bs.graph.convert(prepared)
    assert lines(ours) == lines(whole)
    assert bs.graph.ledger(ours).entries == bs.graph.ledger(whole).entries
    assert torch.equal(run(ours, batches[1]), run(whole, batches[1]))
