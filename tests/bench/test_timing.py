# SPDX-License-Identifier: BSD-3-Clause
"""Races: turns, warm-up, slow contestants. The clock here counts calls, not time."""

import pytest
import torch

from blockscale.bench.requests import Contestant
from blockscale.bench.timing import Racer, clock, race
from tests.support.bench_runs import ticking


def contestant(name, log, kind="ours"):
    return Contestant(name, kind, lambda: log.append(name))


def test_contestants_take_turns_back_and_forth():
    log = []
    racers = [Racer(contestant(n, log), 1.0, ticking(0.125)) for n in "ab"]
    assert log == ["a", "a", "b", "b"]  # each called twice before
    log.clear()
    times = race(racers)
    assert log == list("abbaabbaabba")
    assert times["a"].rounds == times["b"].rounds == 6  # 0.25 of 1.0 seconds went before
    assert times["a"].median == times["a"].minimum == pytest.approx(0.125)
    assert times["a"].calls == 1


def test_short_calls_are_repeated_unless_memory_must_be_cold():
    log = []
    assert Racer(contestant("a", log), 1.0, ticking(1e-5)).calls == 50
    assert Racer(contestant("a", log), 1.0, ticking(1e-9)).calls == 1000
    assert Racer(contestant("a", log), 1.0, ticking(1e-5), cold=True).calls == 1


def test_slow_ones_are_measured_once():
    log = []
    times = race([Racer(contestant("a", log), 1.0, ticking(3.0))])
    assert (times["a"].rounds, len(log)) == (1, 2)
    log.clear()
    times = race([Racer(contestant("a", log), 1.0, ticking(30.0))])
    assert (times["a"].rounds, len(log)) == (1, 1)


def test_at_least_three_rounds():
    assert race([Racer(contestant("a", []), 1.0, ticking(0.9))])["a"].rounds == 3


def test_a_race_is_finite():
    assert race([Racer(contestant("a", []), 1e9, ticking(1e-3))])["a"].rounds == 200


def test_the_clock_of_the_cpu():
    calls = []
    assert clock("cpu")(lambda: calls.append(1), 3) > 0
    assert len(calls) == 3
    with pytest.raises(ValueError, match="cannot measure on device 'meta'; choose from cpu, cuda"):
        clock("meta")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_no_clock_without_a_gpu():
    with pytest.raises(ValueError, match="torch finds no CUDA device"):
        clock("cuda")
