# SPDX-License-Identifier: BSD-3-Clause
"""Processes of one run hear each other, and end together."""

import threading

import pytest
from torch import distributed

from blockscale.core.untrusted import FileError
from blockscale.files.directory import ranks as module
from blockscale.files.directory.ranks import StoreRanks, ranks_of_launcher
from blockscale.layers.guards import is_launched


@pytest.fixture
def two(monkeypatch):
    """Two ranks of one store."""
    monkeypatch.setattr(module, "LEAVING", 0.0)
    store = distributed.HashStore()
    return StoreRanks(store, 0, 2), StoreRanks(store, 1, 2)


def test_what_one_tells_the_other_hears(two):
    first, second = two
    with first, second:
        looks = []

        def meanwhile():
            looks.append(1)
            if len(looks) == 3:
                second.tell("facts/1", {"torch": "2.13"})

        assert first.hear("facts/1", 1, meanwhile) == {"torch": "2.13"}
        assert len(looks) == 3


def test_work_is_taken_once(two):
    first, second = two
    for number in range(3):
        first.tell(f"item/{number}", number)
    assert [first.take(), second.take(), first.take(), second.take()] == [0, 1, 2, None]
    assert first.take() is None


def test_the_first_failure_is_that_of_all(two):
    first, second = two
    with pytest.raises(FileError, match="disk"), second.failing_together():
        raise FileError("the disk of /out is full: make room on it")
    with pytest.raises(KeyError), first.failing_together():
        raise KeyError("later")
    for each in two:
        with pytest.raises(FileError, match=r"^rank 1 on .*: the disk of /out is full"):
            each.hear("go")
    with pytest.raises(FileError, match="rank 1 on"):
        first.check()


def test_a_rank_that_is_stopped_says_how_to_go_on(two):
    first, second = two
    with pytest.raises(SystemExit), second.failing_together():
        raise SystemExit(143)
    with pytest.raises(FileError, match="was stopped: run the same command again to go on"):
        first.check()


def test_a_silent_rank_is_named(two, monkeypatch):
    first, second = two
    monkeypatch.setattr(module, "SILENT", 0.0)
    with pytest.raises(FileError, match=r"rank 1 gave no sign of life .* any number of processes"):
        first.hear("done/1", 1)
    with pytest.raises(FileError, match="rank 1 gave no sign of life"):
        second.check()


def test_signs_of_life_go_on_until_it_is_closed(two, monkeypatch):
    first, second = two
    monkeypatch.setattr(module, "BEAT", 0.001)
    with second:
        before = int(first.store.get("beat/1"))
        while int(first.store.get("beat/1")) == before:
            pass
    assert not second._thread.is_alive() and threading.active_count() >= 1
    assert first.store.check(["bye/1"])


def test_launchers_are_known_by_their_variables(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert not is_launched()
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "0")
    assert not is_launched()  # one process is no run of several
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert is_launched()
    monkeypatch.setattr(
        distributed, "rendezvous", lambda _: iter([(distributed.HashStore(), 0, 2)])
    )
    found = ranks_of_launcher()
    assert (found.rank, found.world) == (0, 2)
