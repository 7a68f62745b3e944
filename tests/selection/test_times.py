# SPDX-License-Identifier: BSD-3-Clause
"""What is timed, and how often: never how long."""

import pytest
import torch

from blockscale.selection import times
from blockscale.selection.candidates import choices, read
from blockscale.selection.times import peak
from tests.selection.models import CANDIDATES, Tied, batches, mlp


@pytest.mark.slow
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


# The memory of a call, where it is known by counting.

MIB = 1 << 20


def test_the_result_alone():
    assert peak(lambda: torch.empty(MIB, dtype=torch.uint8), "cpu") == MIB


def test_temporaries_count_while_they_are_there():
    def call():
        first = torch.empty(3 * MIB, dtype=torch.uint8)
        del first
        second = torch.empty(2 * MIB, dtype=torch.uint8)
        return torch.empty(MIB // 2, dtype=torch.uint8), second

    assert peak(call, "cpu") == 3 * MIB


def test_what_was_there_before_does_not_count():
    kept = torch.empty(5 * MIB, dtype=torch.uint8)
    assert peak(lambda: kept[:10], "cpu") == 0


def test_an_error_comes_through(capfd):
    with pytest.raises(ZeroDivisionError):
        peak(lambda: 1 // 0, "cpu")
