"""What `blockscale bench` says beside a run."""

import json

import pytest
from typer.testing import CliRunner

from blockscale.bench import environment, results
from blockscale.bench import run as measuring
from blockscale.bench.settings import TINY
from blockscale.cli.app import app
from blockscale.cli.commands import bench
from blockscale.cli.comparing import show_race, write_plots


@pytest.fixture(autouse=True)
def _here(monkeypatch, tmp_path):
    monkeypatch.setenv(environment.GUARD, "1")
    monkeypatch.setattr(bench, "sizes", lambda device, quick: TINY)
    monkeypatch.setattr(results, "folder", lambda: tmp_path)
    monkeypatch.setattr(measuring, "_LONGEST", {True: 0.001, False: 0.001})


def run(*args):
    only = ("--only", "quantize/mxfp4/*", "--no-peers")
    return CliRunner().invoke(app, ["bench", *only, *map(str, args)])


def earlier(tmp_path, factor):
    """A run of now whose times of ours were `factor` times as long."""
    path = tmp_path / "earlier.json"
    assert run("--json", path).exit_code == 0
    data = json.loads(path.read_text())
    for case in data["cases"]:
        for line in case["contestants"]:
            line["seconds"] *= factor if line["kind"] == "ours" else 1.0
    path.write_text(json.dumps(data))
    return path


def test_an_earlier_run_that_was_slower_is_no_error(tmp_path):
    path = earlier(tmp_path, 1e6)
    done = run("--against", path, "--json", tmp_path / "now.json")
    assert done.exit_code == 0, done.output
    assert "Against the earlier run" in done.stderr


def test_one_that_was_faster_ends_with_one(tmp_path):
    path = earlier(tmp_path, 1e-6)
    done = run("--against", path, "--json", tmp_path / "now.json")
    assert done.exit_code == 1
    assert "are slower than 1.1 times the earlier run" in done.stderr
    assert (tmp_path / "now.json").exists()  # what was measured is kept
    done = run("--against", path, "--tolerance", "1e12", "--json", tmp_path / "later.json")
    assert done.exit_code == 0


def test_wrong_words_come_before_measuring(tmp_path):
    for args, said in (
        (["--against", tmp_path / "no.json"], "does not exist"),
        (["--tolerance", "0"], "a tolerance is above 0"),
        (["--beside", tmp_path], "no checkout of blockscale"),
    ):
        done = run(*args)
        assert done.exit_code == 1
        assert said in done.stderr
        assert list(tmp_path.iterdir()) == []


def test_plots(tmp_path):
    assert run("--plot", tmp_path / "plots", "--json", tmp_path / "run.json").exit_code == 0
    [path] = (tmp_path / "plots").iterdir()
    assert path.name == "bench-primitives.svg"
    assert path.read_text().startswith("<svg")
    with pytest.raises(ValueError, match="nothing to plot"):
        write_plots({"cases": [], "settings": {"device": "cpu"}}, tmp_path / "none")
    with pytest.raises(ValueError, match="is a file"):
        write_plots(json.loads((tmp_path / "run.json").read_text()), tmp_path / "run.json")


def test_a_race_as_table_file_and_plot(tmp_path, capsys):
    pair = {"case": "quantize/a", "by": "op", "here": [1.0], "beside": [2.0], "here_median": 1.0,
            "beside_median": 2.0, "ratio": 0.5}  # fmt: skip
    found = {"pairs": [pair], "rounds": 1, "commits": {"here": "abc", "beside": "def"}}
    show_race(found, str(tmp_path / "race.json"), tmp_path / "plots")
    assert "0.500" in capsys.readouterr().out
    assert json.loads((tmp_path / "race.json").read_text()) == found
    assert "quantize/a op" in (tmp_path / "plots" / "beside.svg").read_text()
    show_race(found, "-", None)
    assert json.loads(capsys.readouterr().out) == found
