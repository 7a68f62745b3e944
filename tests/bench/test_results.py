# SPDX-License-Identifier: BSD-3-Clause
"""The file of a run: whole, told apart from others, and the newest is found."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from blockscale.bench import results, run
from blockscale.bench.settings import Settings
from tests.support.bench_runs import FEW, Heard
from tests.support.invented_speed import invented


@pytest.fixture(autouse=True)
def _brief(monkeypatch):
    monkeypatch.setattr(run, "_LONGEST", {True: 0.001, False: 0.001})


def test_another_run_does_not_go_on(tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    with pytest.raises(KeyboardInterrupt):
        run.run(FEW, path, False, Heard(KeyboardInterrupt(), at=1))
    with pytest.raises(ValueError, match="its settings was quick False, not True; measure again"):
        run.run(replace(FEW, quick=True), path, True, Heard())
    monkeypatch.setattr(results, "commit", lambda: "another")
    with pytest.raises(ValueError, match=r"its commit was '.*', not 'another'"):
        run.run(FEW, path, True, Heard())
    path.write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        run.run(FEW, path, True, Heard())
    path.write_text("{}")
    with pytest.raises(ValueError, match="was not written by `blockscale bench`"):
        run.run(FEW, path, True, Heard())


def test_a_write_that_fails_leaves_the_file_and_nothing_else(tmp_path):
    made = results.Results(tmp_path / "run.json", {"schema": 1, "cases": []})
    made.write()
    made.data["cases"].append(object())
    with pytest.raises(TypeError):
        made.write()
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert json.loads(made.path.read_text())["cases"] == []


def save(path, **changes):
    path.write_text(json.dumps(invented() | changes))
    return path


@pytest.mark.slow
def test_the_newest_full_run(tmp_path):
    part = results.about(Settings(quick=True))["settings"]
    paths = [
        save(tmp_path / "a.json", when="2026-01-02"),
        save(tmp_path / "b.json", when="2026-01-03"),
        save(tmp_path / "c.json", when="2026-01-04", complete=False),
        save(tmp_path / "d.json", when="2026-01-05", settings=part),
        save(tmp_path / "e.json", when="2026-01-06", schema=0),
    ]
    found = results.newest_full(paths)
    assert found is not None
    assert found[0].name == "b.json"
    assert results.newest_full([]) is None
    assert results.newest_full(paths, "cuda") is None
    gpu = results.about(Settings())["settings"] | {"device": "cuda"}
    stopped = save(tmp_path / "f.json", when="2026-01-09", complete=False, settings=gpu)
    found = results.newest_full([*paths, stopped], "cuda")
    assert found is not None and found[0] == stopped
    whole = save(tmp_path / "g.json", when="2026-01-08", settings=gpu)
    found = results.newest_full([*paths, stopped, whole], "cuda")
    assert found is not None and found[0] == whole
    assert all(path.suffix == ".json" for path in results.tracked_files())


def test_committed_runs_are_whole():
    for path in results.tracked_files():
        data = json.loads(Path(path).read_text())
        if results.is_run(data):
            assert data["complete"] or data["settings"]["device"] == "cuda", path
            assert data["settings"]["full"], path


@pytest.mark.slow
def test_the_newest_unfinished_run(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "folder", lambda: tmp_path)
    assert results.newest_incomplete(FEW) is None
    mine = results.about(FEW)["settings"]
    save(tmp_path / "old.json", complete=False, when="2026-01-01", settings=mine)
    newest = save(tmp_path / "new.json", complete=False, when="2026-01-02", settings=mine)
    save(tmp_path / "done.json", complete=True, when="2026-01-03", settings=mine)
    save(tmp_path / "other.json", complete=False, when="2026-01-04")
    assert results.newest_incomplete(FEW) == newest


def test_names_say_what_a_run_is():
    assert results.new_path(Settings("cuda:1")).name.startswith("part-cuda1-")  # FULL is the CPU's
    assert results.new_path(Settings()).name.startswith("full-cpu-")
    assert results.new_path(Settings(quick=True)).name.startswith("quick-cpu-")
