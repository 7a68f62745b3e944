# SPDX-License-Identifier: BSD-3-Clause
"""What a graph knows beside its nodes."""

import copy
import warnings

import pytest
from torch import nn

import blockscale as bs
from blockscale.graph.program import imported
from blockscale.graph.state import note, state
from tests.support import graph_models as models


def test_it_stays_with_copies():
    graph = bs.graph.convert(bs.graph.prepare(models.net()[1], "int8_channel"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's own, of what it copies
        again = copy.deepcopy(graph)
    assert state(again).stage == "converted"
    assert [e.name for e in bs.graph.ledger(again)] == [e.name for e in bs.graph.ledger(graph)]


def test_a_step_does_not_change_the_state_of_its_input():
    graph = bs.graph.convert(bs.graph.prepare(models.net()[1], "int8_channel"))
    before = [(e.name, e.notes) for e in bs.graph.ledger(graph)]
    other = imported(graph)
    note(other, "c1", "Conv2d", "something")
    note(other, "new", "node", "something")
    assert [(e.name, e.notes) for e in bs.graph.ledger(graph)] == before
    assert state(graph).stage == "converted"


def test_notes_are_said_once():
    graph = imported(models.net()[1])
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
