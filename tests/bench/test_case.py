# SPDX-License-Identifier: BSD-3-Clause
"""Contestants and what is asked of their times."""

import logging
import warnings
from dataclasses import replace

import pytest

from blockscale.bench import case as rivals
from blockscale.bench.case import Contestant, Peer, best
from blockscale.bench.peers import onnxruntime, torch_own, torchao
from blockscale.bench.timing import Racer, Timing, race
from tests.support.bench_runs import SETTINGS, measured, ticking


def test_warnings_of_peers_stay_inside():
    def noisy():
        warnings.warn("old", DeprecationWarning, stacklevel=1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        race([Racer(Contestant("theirs", "peer", noisy), 0.0, ticking(1.0))])
        with pytest.raises(DeprecationWarning):
            Racer(Contestant("mine", "ours", noisy), 0.0, ticking(1.0))


def test_a_missing_kernel_is_recorded_and_not_warned_of():
    def slow():
        warnings.warn("no cpu kernel runs pack for int8 on these tensors", stacklevel=1)

    mine = Contestant("mine", "ours", slow)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with mine.quiet():
            mine.call()
        with pytest.raises(UserWarning, match="no cpu kernel runs"):
            mine.call()


def test_the_best_of_some():
    times = {n: Timing(s, s, 1, 1) for n, s in (("copy: a", 3.0), ("copy: b", 2.0), ("c", 1.0))}
    assert best(times, "copy: ") == 2.0
    assert best(times, "") == 1.0


# Other libraries are found by their files; one that fails is told of, and nothing stops.


def test_a_peer_that_fails_is_told_of(monkeypatch):
    def fails():
        raise OSError("no library\nand more")

    monkeypatch.setattr(torch_own, "linear", lambda layer: [Peer("theirs", fails)])
    monkeypatch.setattr(torchao, "unavailable", lambda: "torchao is not installed")
    monkeypatch.setattr(onnxruntime, "unavailable", lambda: None)  # whether it is or not
    monkeypatch.setattr(
        onnxruntime, "linear", lambda layer: [Peer("late", lambda: lambda x: fails)]
    )
    [case] = measured(replace(SETTINGS, peers=True, only="linear/256x32/m=2"))
    assert case["skipped"] == [
        {"name": "theirs", "reason": "OSError: no library"},
        {"name": "torchao", "reason": "torchao is not installed"},
        {"name": "late", "reason": "OSError: no library"},
    ]


def test_errors_in_one_line():
    assert rivals.told(OSError("no library\nand more")) == "OSError: no library"
    assert rivals.told(ValueError()) == "ValueError: "
    assert len(rivals.told(ValueError("long " * 100))) == len("ValueError: ") + 200


class Records(logging.Handler):
    """Keeps what reaches the root logger."""

    def __init__(self):
        super().__init__()
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


@pytest.fixture
def records():
    handler = Records()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


def test_other_libraries_are_quiet(records):
    with rivals.hushed():
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        logging.getLogger("theirs").warning("hello")
        logging.getLogger("theirs").error("broken")
    logging.getLogger("theirs").warning("after")
    assert records.messages == ["broken", "after"]
    with pytest.raises(DeprecationWarning):
        warnings.warn("old", DeprecationWarning, stacklevel=1)
