# SPDX-License-Identifier: BSD-3-Clause
"""Graphs of ours in files and copies: the same bits, and every later step goes on from them."""

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import blockscale as bs
from blockscale.graph.pickled import Graph, note, state
from blockscale.graph.program import exported, import_graph
from tests.support import fresh
from tests.support import graph_models as models

X = torch.randn(3, 32, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    """Sizes that are free, folded arguments, and two names of one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.fc = nn.Embedding(16, 32), nn.Linear(32, 32)
        self.head = nn.Linear(32, 16, bias=False)
        self.head.weight = self.table.weight

    def forward(self, given: dict[str, Tensor], scale: float = 2.0) -> dict[str, Tensor]:
        x = torch.softmax(self.fc(given["x"]) * scale, -1)
        return {"logits": self.head(x), "rows": x.reshape(x.shape[0] * 2, -1)}


@cache
def program() -> torch.export.ExportedProgram:
    torch.manual_seed(0)
    free = {"given": {"x": {0: Dim("rows", min=2, max=64)}}}
    return torch.export.export(Net().eval(), ({"x": X},), dynamic_shapes=free)


def prepared(**more: Any) -> Any:
    recipe = bs.Recipe(
        "int8_channel", "int8:tensor:fp32", rules={"op:softmax": {"output": "uint8"}}
    )
    return bs.graph.prepare(program(), recipe, **more)


@cache
def converted() -> Graph:
    watching = prepared()
    watching({"x": X})
    made = bs.graph.convert(watching)
    assert isinstance(made, Graph)
    return made


@cache
def fused() -> Any:
    return bs.graph.fuse(converted())


@cache
def lowered(target: str) -> Any:
    return bs.graph.lower(fused(), target)


def saved(graph: Any) -> Any:
    stream = io.BytesIO()
    torch.save(graph, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


WAYS: dict[str, Callable[[Any], Any]] = {
    "torch.save": saved,
    "pickle": lambda graph: pickle.loads(pickle.dumps(graph)),
    "deepcopy": copy.deepcopy,
}
STEPS: dict[str, Callable[[], Any]] = {
    "converted": converted,
    "fused": fused,
    "reference": lambda: lowered("reference"),
    "cpu": lambda: lowered("cpu"),
    "inductor": lambda: lowered("inductor"),
}


def same(a: Any, b: Any, rows: int = 5) -> None:
    """Equal bits, also for another number of rows than the example's."""
    for x in (X, torch.randn(rows, 32)):
        one, other = a({"x": x}), b({"x": x})
        assert all(torch.equal(one[name], other[name]) for name in ("logits", "rows"))


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("step", STEPS)
def test_a_graph_comes_back(step: str, way: str) -> None:
    graph = STEPS[step]()
    again = WAYS[way](graph)
    same(again, graph)
    assert type(again).__name__ == type(graph).__name__ and isinstance(again, Graph)
    assert bs.graph.ledger(again).to_dict() == bs.graph.ledger(graph).to_dict()
    assert state(again).stage == state(graph).stage
    assert [n.name for n in again.graph.nodes] == [n.name for n in graph.graph.nodes]
    assert sorted(again.state_dict()) == sorted(graph.state_dict())
    for one, other in zip(graph.graph.nodes, again.graph.nodes, strict=True):
        assert ("val" in one.meta) == ("val" in other.meta), one.name


@pytest.mark.slow
@pytest.mark.some(2)
@pytest.mark.parametrize("way", WAYS)
def test_later_steps_go_on(way: str) -> None:
    """Of a graph that was read: fused, lowered and exported, with sizes as free as they were."""
    graph, again = converted(), WAYS[way](converted())
    fused_again = bs.graph.fuse(again)
    assert fused_again.code == fused().code
    same(fused_again, fused())
    same(bs.graph.lower(fused_again, "cpu"), lowered("cpu"))
    program = exported(again)
    same(program.module(), graph, rows=7)
    with pytest.raises(Exception, match=r"rows|64|Guard failed"):
        program.module()({"x": torch.randn(65, 32)})


@pytest.mark.slow
@pytest.mark.parametrize(
    "ready", [fresh.WITH_OURS, pytest.param(fresh.TORCH, marks=pytest.mark.slow)], ids=len
)
def test_another_process_reads_it(tmp_path: Path, ready: tuple[str, ...]) -> None:
    """What reads it imports what of ours it needs: of all, where only torch was imported."""
    graph = fused()
    torch.save((graph, X, graph({"x": X})["logits"]), tmp_path / "graph.pt")
    code = "graph, x, y = torch.load(sys.argv[1], weights_only=False)\n"
    code = f"import sys, torch\n{code}assert torch.equal(graph({{'x': x}})['logits'], y)"
    fresh.run(code, tmp_path / "graph.pt", ready=ready, check=True)


@pytest.mark.parametrize("way", WAYS)
def test_a_graph_that_watches_is_refused(way: str) -> None:
    watching = prepared()
    with pytest.raises(
        TypeError,
        match=r"cannot be copied or saved, because its observers would be lost.*bs\.graph\.convert",
    ):
        WAYS[way](watching)
    watching({"x": X})  # and still works
    bs.graph.convert(watching)


@pytest.mark.some(4)
@pytest.mark.parametrize("way", WAYS)
def test_a_graph_in_training(way: str) -> None:
    graph = prepared(qat=True)
    graph.train()
    for _ in range(2):
        graph({"x": X})["logits"].square().sum().backward()
    again = WAYS[way](graph)
    assert again.training
    same(bs.graph.convert(again.eval()), bs.graph.convert(graph.eval()))


@pytest.mark.slow
def test_integers(tmp_path: Path) -> None:
    """The program of integers that a quantized model becomes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 8)).eval()
    power = "int8:tensor:pow2/nearest"
    recipe = bs.Recipe("int8:channel0:pow2/nearest", power, power, bias="int32")
    bs.calibrate(model, [X], recipe, progress=False)
    integers = bs.graph.to_integer(model, X)
    for way in WAYS.values():
        assert torch.equal(way(integers)(X), integers(X))


# What a graph knows beside its nodes.


@pytest.mark.slow
def test_it_stays_with_copies():
    graph = bs.graph.convert(bs.graph.prepare(models.net()[1], "int8_channel"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's own, of what it copies
        again = copy.deepcopy(graph)
    assert state(again).stage == "converted"
    assert [e.name for e in bs.graph.ledger(again)] == [e.name for e in bs.graph.ledger(graph)]


@pytest.mark.slow
def test_a_step_does_not_change_the_state_of_its_input():
    graph = bs.graph.convert(bs.graph.prepare(models.net()[1], "int8_channel"))
    before = [(e.name, e.notes) for e in bs.graph.ledger(graph)]
    other = import_graph(graph)
    note(other, "c1", "Conv2d", "something")
    note(other, "new", "node", "something")
    assert [(e.name, e.notes) for e in bs.graph.ledger(graph)] == before
    assert state(graph).stage == "converted"


def test_notes_are_said_once():
    graph = import_graph(models.net()[1])
    for _ in range(2):
        note(graph, "c1", "Conv2d", "first")
    note(graph, "c1", "Conv2d", "second")
    note(graph, "c1", "Conv2d", "second")
    (entry,) = state(graph).ledger.entries
    assert (entry.name, entry.status, entry.reason, entry.notes) == (
        "c1",
        "kept",
        "first",
        ("first", "second"),
    )


def test_what_has_no_state():
    with pytest.raises(ValueError, match=r"found a Linear: start with bs\.graph\.prepare"):
        state(nn.Linear(2, 2))  # type: ignore[arg-type]
