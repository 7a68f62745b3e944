# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale bench` as a user meets it: output, file, Ctrl-C, going on, starting again."""

import json

import pytest
from typer.testing import CliRunner

from blockscale.bench import machine, results
from blockscale.bench import run as measuring
from blockscale.bench.settings import TINY
from blockscale.cli.app import app
from blockscale.cli.commands import bench
from tests.support.bench_runs import Heard


@pytest.fixture(autouse=True)
def _here(monkeypatch, tmp_path):
    """No new process, tiny shapes, results in a folder of the test's."""
    monkeypatch.setenv(machine.GUARD, "1")
    monkeypatch.setattr(bench, "sizes", lambda device, quick: TINY)
    monkeypatch.setattr(results, "folder", lambda: tmp_path)
    monkeypatch.setattr(measuring, "_LONGEST", {True: 0.001, False: 0.001})


def run(*args):
    return CliRunner().invoke(app, ["bench", "--only", "overhead/*/mxfp4/*", *map(str, args)])


@pytest.mark.slow
def test_a_run(tmp_path):
    done = run("--no-peers")
    assert done.exit_code == 0, done.output
    [path] = tmp_path.iterdir()
    assert path.name.startswith("part-cpu-")
    assert "Overhead on small tensors" in done.stdout
    assert "processor: " in done.stdout
    assert done.stdout.endswith(f"written: {path}\n")
    assert "measuring overhead" in done.stderr
    data = json.loads(path.read_text())
    assert data["complete"]
    assert data["settings"]["only"] == "overhead/*/mxfp4/*"
    assert data["settings"]["formats"] == []


@pytest.mark.slow
def test_json(tmp_path):
    path = tmp_path / "mine.json"
    assert run("--json", path, "--quick").exit_code == 0
    done = run("--json", "-", "--quick", "--formats", "mxfp4,int8")
    assert json.loads(done.stdout)["settings"]["formats"] == ["mxfp4", "int8"]
    assert [p.name[:6] for p in sorted(tmp_path.iterdir())] == ["mine.j", "quick-"]


def test_stopped_and_resumed(tmp_path, monkeypatch):
    stopping = Heard(KeyboardInterrupt(), at=2)
    with monkeypatch.context() as patch:
        patch.setattr(bench._Lines, "begin", lambda self, case: stopping.begin(case))
        done = run()
    [path] = tmp_path.iterdir()
    assert done.exit_code == 130
    assert done.stderr.splitlines()[-2:] == [
        f"what was measured is kept in {path}; --resume goes on",
        "blockscale: interrupted",
    ]
    done = run("--resume")
    assert "going on: 2 of 4 cases were measured earlier" in done.stderr
    assert json.loads(path.read_text())["complete"]
    assert run("--resume").exit_code == 0  # nothing unfinished is left: a new run
    assert "earlier" not in run("--resume", "--json", tmp_path / "new.json").stderr


@pytest.mark.slow
def test_errors(tmp_path):
    for args, message in (
        (["--device", "tpu"], "cannot measure on device 'tpu'; choose from cpu, cuda"),
        (["--only", "nothing"], "no case matches 'nothing'"),
        (["--formats", "mxfp5"], "unknown format 'mxfp5': did you mean"),
        (["--seconds", "-5"], "seconds must be >= 0, got -5"),
        (["--seconds", "nan"], "seconds must be >= 0, got nan"),
    ):
        done = run(*args)
        assert done.exit_code == 1
        assert done.stderr.splitlines()[-1].startswith(f"blockscale: {message}")
    assert list(tmp_path.iterdir()) == []
