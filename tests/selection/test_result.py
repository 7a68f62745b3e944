# SPDX-License-Identifier: BSD-3-Clause
"""What a search gives: files that come back, a front, other budgets."""

import json
import math
import os

import pytest

import blockscale as bs
from blockscale.selection.result import SearchState, StateError, write_whole
from blockscale.selection.search import search
from tests.selection.models import CANDIDATES, batches, mlp


@pytest.fixture(scope="module")
def found():
    points = (3, 5, 7, 9)
    return search(mlp(), batches(), 7, candidates=CANDIDATES, points=points, progress=False)


@pytest.mark.slow
def test_it_comes_back_from_its_file(found, tmp_path):
    path = tmp_path / "search.json"
    found.save(path)
    again = bs.read_search(path)
    assert again == found
    assert again.to_dict() == found.to_dict()
    assert again.at(6.5) == found.at(6.5)
    assert str(again) == str(found)


@pytest.mark.slow
def test_the_file_has_what_a_report_reads(found, tmp_path):
    found.save(tmp_path / "search.json")
    data = json.loads((tmp_path / "search.json").read_text())
    assert {"layers", "points", "hardware", "command", "versions"} <= data.keys()
    for layer in data["layers"]:
        assert layer["name"] in ("0", "2", "4")
        assert all({"format", "bits", "sqnr"} <= each.keys() for each in layer["candidates"])
    for point in data["points"]:
        assert isinstance(bs.Recipe.from_dict(point["recipe"]), bs.Recipe)
        assert point["bits"] > 0
        assert point["quality"] <= 1
    assert data["hardware"]["processor"] == bs.hardware().processor
    assert data["versions"]["blockscale"] == bs.__version__


def test_infinities_are_null(tmp_path):
    model = mlp()
    model[4].weight.data.zero_()
    found = search(model, batches(), 13, candidates=["int8_channel"], points=(), progress=False)
    found.save(tmp_path / "search.json")
    again = bs.read_search(tmp_path / "search.json")
    assert again.layers[2].candidates[0].sqnr == math.inf


def test_the_front_has_what_nothing_beats(found):
    every = (*found.points, *found.uniform)
    for point in every:
        beaten = any(
            other.bits <= point.bits
            and other.quality >= point.quality
            and (other.bits, other.quality) != (point.bits, point.quality)
            for other in every
        )
        same = [(each.bits, each.quality) for each in found.front]
        assert ((point.bits, point.quality) in same) != beaten


def test_files_that_hold_none(found, tmp_path):
    path = tmp_path / "search.json"
    path.write_text('{"layers": [{"candidates": []}]}')
    with pytest.raises(
        ValueError, match=r"was not saved by bs.search of this version: it has no 'chosen'"
    ):
        bs.read_search(path)
    found.save(path)
    data = json.loads(path.read_text())
    del data["layers"][0]["candidates"][0]["bits"]
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=r"was not saved by bs.search of this version: TypeError"):
        bs.read_search(path)


@pytest.mark.parametrize(
    ("place", "told"), [("", "is a directory"), ("no/a.json", "not a directory")]
)
def test_places_that_cannot_be_written(found, tmp_path, place, told):
    with pytest.raises(ValueError, match=told):
        found.save(tmp_path / place)


def test_as_text(found):
    lines = str(found).splitlines()
    assert lines[0].startswith("0  ")
    assert len([line for line in lines if line.endswith("searched")]) == len(found.points)
    assert any(line.endswith("int8:group16:fp16") for line in lines)


# A search's state: whole or not at all, and nobody else's.


def test_it_comes_back(tmp_path):
    path = tmp_path / "state.json"
    first = SearchState(path, "run")
    first["a"] = {"x": 1.5, "y": math.inf, "z": [0.1, -math.inf]}
    first["b"] = 0.1 + 0.2
    again = SearchState(path, "run")
    assert again["a"] == {"x": 1.5, "y": math.inf, "z": [0.1, -math.inf]}
    assert again["b"] == 0.1 + 0.2
    assert "c" not in again
    again["n"] = math.nan
    assert math.isnan(SearchState(path, "run")["n"])
    assert [each.name for each in tmp_path.iterdir()] == ["state.json"]


def test_in_memory_alone(tmp_path):
    state = SearchState(None, "run")
    state["a"] = 1
    assert state["a"] == 1


def test_another_search_or_no_search_at_all(tmp_path):
    path = tmp_path / "state.json"
    SearchState(path, "run")["a"] = 1
    with pytest.raises(StateError, match="measured by another search"):
        SearchState(path, "other")
    for text in ('{"schema": 1}', '{"schema": 9, "search": "run", "measured": {}}'):
        path.write_text(text)
        with pytest.raises(StateError, match="not the state of a search"):
            SearchState(path, "run")
    for text in ("[]", "{"):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"expected a JSON object|is not JSON"):
            SearchState(path, "run")
    with pytest.raises(StateError, match="is a directory"):
        SearchState(tmp_path, "run")
    with pytest.raises(StateError, match="not a directory: create it first"):
        SearchState(tmp_path / "none" / "state.json", "run")


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
