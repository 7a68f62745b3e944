# SPDX-License-Identifier: BSD-3-Clause
"""A search's state: whole or not at all, and nobody else's."""

import math
import os

import pytest

from blockscale.selection.state import State, StateError, write_whole


def test_it_comes_back(tmp_path):
    path = tmp_path / "state.json"
    first = State(path, "run")
    first["a"] = {"x": 1.5, "y": math.inf, "z": [0.1, -math.inf]}
    first["b"] = 0.1 + 0.2
    again = State(path, "run")
    assert again["a"] == {"x": 1.5, "y": math.inf, "z": [0.1, -math.inf]}
    assert again["b"] == 0.1 + 0.2
    assert "c" not in again
    again["n"] = math.nan
    assert math.isnan(State(path, "run")["n"])
    assert [each.name for each in tmp_path.iterdir()] == ["state.json"]


def test_in_memory_alone(tmp_path):
    state = State(None, "run")
    state["a"] = 1
    assert state["a"] == 1


def test_another_search_or_no_search_at_all(tmp_path):
    path = tmp_path / "state.json"
    State(path, "run")["a"] = 1
    with pytest.raises(StateError, match="measured by another search"):
        State(path, "other")
    for text in ('{"schema": 1}', '{"schema": 9, "search": "run", "measured": {}}'):
        path.write_text(text)
        with pytest.raises(StateError, match="no state of a search"):
            State(path, "run")
    for text in ("[]", "{"):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"expected a JSON object|is not JSON"):
            State(path, "run")
    with pytest.raises(StateError, match="is a directory"):
        State(tmp_path, "run")
    with pytest.raises(StateError, match="not a directory: create it first"):
        State(tmp_path / "none" / "state.json", "run")


def test_a_write_that_fails_leaves_what_was(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_whole(path, "old")

    def fail(number):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_whole(path, "new")
    assert path.read_text() == "old\n"
    assert list(tmp_path.iterdir()) == [path]
