"""Races: turns, warm-up, slow contestants. The clock here counts calls, not time."""

import warnings

import pytest
import torch

from blockscale.bench.case import Contestant
from blockscale.bench.copying import _in_threads, copies
from blockscale.bench.timing import Racer, clock, race


def contestant(name, log, kind="ours"):
    return Contestant(name, kind, lambda: log.append(name))


def ticking(seconds):
    """A clock on which a call of each contestant takes what `seconds` says, by its name."""

    def tick(call, times):
        for _ in range(times):
            call()
        return times * seconds

    return tick


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


def test_warnings_of_peers_stay_inside():
    def noisy():
        warnings.warn("old", DeprecationWarning, stacklevel=1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        race([Racer(Contestant("theirs", "peer", noisy), 0.0, ticking(1.0))])
        with pytest.raises(DeprecationWarning):
            Racer(Contestant("mine", "ours", noisy), 0.0, ticking(1.0))


def test_the_clock_of_the_cpu():
    calls = []
    assert clock("cpu")(lambda: calls.append(1), 3) > 0
    assert len(calls) == 3
    with pytest.raises(ValueError, match="no clock for device 'meta'"):
        clock("meta")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_no_clock_without_a_gpu():
    with pytest.raises(ValueError, match="this torch sees no CUDA device"):
        clock("cuda")


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 64, 65, 1000, 4096])
def test_threads_copy_every_byte(size, threads):
    source = torch.randint(0, 256, (size,), dtype=torch.uint8)
    target = torch.zeros(size + 1, dtype=torch.uint8)
    _in_threads(target[:size], source, threads)()
    assert torch.equal(target[:size], source)
    assert target[size] == 0


def test_copies_move_half_of_their_bytes_twice():
    found = copies(4096, "cpu")
    assert [each.name for each in found] == ["copy: torch", "copy: memcpy in threads"]
    assert {each.bytes for each in found} == {4096}
    assert found[0].call().numel() == 2048
    assert [each.name for each in copies(4096, "meta")] == ["copy: torch"]
