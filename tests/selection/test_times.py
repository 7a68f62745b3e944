# SPDX-License-Identifier: BSD-3-Clause
"""What is timed, and how often: never how long."""

import torch

from blockscale.selection import times
from blockscale.selection.candidates import read
from blockscale.selection.choices import choices
from tests.selection.models import CANDIDATES, Tied, batches, mlp


def test_every_layer_in_every_candidate_and_in_float():
    model, candidates = mlp(), read(CANDIDATES)
    found, _ = choices(model, candidates)
    seconds = times.layer_seconds(
        times.inputs_of(model, found, batches()[0]), found, candidates, {"other": list}
    )
    names = ["", *(each.name for each in candidates)]
    expected = [(layer, name) for layer in ("0", "2", "4") for name in names]
    assert list(seconds) == [*expected, ("other", "")]
    assert all(each > 0 for each in seconds.values())


def test_layers_that_are_alike_are_timed_once(monkeypatch):
    raced = []

    def race(calls):
        raced.extend(calls)
        return dict.fromkeys(calls, 1.0)

    monkeypatch.setattr(times, "race", race)
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(4)))
    found, _ = choices(model, read(["mxfp4"]))
    seconds = times.layer_seconds(
        times.inputs_of(model, found, (torch.randn(2, 16),)), found, read(["mxfp4"])
    )
    assert len(raced) == 2
    assert seconds == {(str(i), name): 1.0 for i in range(4) for name in ("", "mxfp4")}


def test_both_uses_of_a_shared_weight_count(monkeypatch):
    monkeypatch.setattr(times, "race", lambda calls: dict.fromkeys(calls, 1.0))
    model = Tied()
    found, _ = choices(model, read(["mxfp4"]))
    seconds = times.layer_seconds(
        times.inputs_of(model, found, (torch.tensor([[1, 2]]),)), found, read(["mxfp4"])
    )
    assert seconds["table", "mxfp4"] == 2.0
    assert seconds["inner", ""] == 1.0


def test_all_take_turns(monkeypatch):
    order = []
    monkeypatch.setattr(times, "_SAMPLE", 0.0)
    times.race({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=2)
    assert "".join(order) == "aa" + "aa"[:0] + "bb" + "ab" + "ba"
