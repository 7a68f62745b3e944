# SPDX-License-Identifier: BSD-3-Clause
"""What `blockscale bench` says beside a run."""

import json

import pytest
from typer.testing import CliRunner

from blockscale.bench import machine, results
from blockscale.bench import run as measuring
from blockscale.bench.settings import TINY
from blockscale.cli.app import app
from blockscale.cli.commands import bench
from blockscale.cli.commands.bench import PLACES, pages, show_race, write_plots
from tests.support.invented_speed import invented


@pytest.fixture(autouse=True)
def _here(monkeypatch, tmp_path):
    monkeypatch.setenv(machine.GUARD, "1")
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


@pytest.mark.slow
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
        (["--tolerance", "0"], "the tolerance must be > 0 (1.1 allows"),
        (["--beside", tmp_path], "not a checkout of blockscale: it has no"),
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


NOTES = "<!-- source -->\n# Performance\n\n" + "\n\n".join(PLACES) + "\n\nTried: nothing.\n"


def test_the_page_of_a_run():
    made = pages(NOTES, ("benchmarks/results/full.json", invented()))
    assert list(made) == [
        "performance.md",
        "images/performance-primitives.svg",
        "images/performance-linear.svg",
    ]
    page = made["performance.md"]
    assert "<!-- source -->" not in page
    assert not any(place in page for place in PLACES)
    assert page.endswith("Tried: nothing.\n")
    assert "| run | `benchmarks/results/full.json` |" in page
    assert "| mxfp4 | float32 | 0.50* ✗ 0.8 |  |  |" in page
    assert "| torchao mxfp4 eager | quantize | mxfp4 | 0.05 | 0.50* ✗ 0.8 |" in page
    assert "| bfp8 x bfp8 | 0.100 ✓ | 0.40 |" in page
    assert "| bfp8 x bfp8 | 0.020 |" in page  # predicted: 10 MB over 50 GB/s, of 10 ms
    assert page.count("late: OSError: no library") == 1
    assert made == pages(
        NOTES, ("benchmarks/results/full.json", json.loads(json.dumps(invented())))
    )


def test_the_page_of_a_gpu():
    run = json.loads(json.dumps(invented()).replace("torch fp32", "torch bf16"))
    run["settings"]["device"] = "cuda"
    run["hardware"]["devices"] = [{"name": "NVIDIA H200"}]
    made = pages(NOTES, ("benchmarks/results/full-cuda.json", run), "performance_cuda")
    assert list(made) == [
        "performance_cuda.md",
        "images/performance_cuda-primitives.svg",
        "images/performance_cuda-linear.svg",
    ]
    page = made["performance_cuda.md"]
    assert "docs/performance_cuda_notes.md" in page
    assert "| device | NVIDIA H200 |" in page
    assert "relative to torch bf16's F.linear" in page


def test_the_page_without_a_run():
    made = pages(NOTES, None)
    assert list(made) == ["performance.md"]
    assert made["performance.md"].count("No full run is committed yet") == len(PLACES)


def test_notes_without_a_place():
    with pytest.raises(ValueError, match="no line <!-- predicted -->"):
        pages(NOTES.replace("<!-- predicted -->", ""), None)
