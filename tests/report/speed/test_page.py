"""The page and its plots: from a run's file alone, the same each time."""

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from blockscale.bench import results
from blockscale.bench.settings import MIB, Settings
from blockscale.report import charts
from blockscale.report.speed import floors, tables
from blockscale.report.speed.page import PLACES, pages

NOTES = "<!-- source -->\n# Performance\n\n" + "\n\n".join(PLACES) + "\n\nTried: nothing.\n"


def line(name, kind, seconds, **more):
    counts = {"least_seconds": seconds, "rounds": 3, "calls": 1}
    return {"name": name, "kind": kind, "seconds": seconds, **counts, **more}


def invented():
    """A complete full run with figures that are easy to check."""
    cases = [
        {
            "name": f"ceilings/copy/{64 * MIB}", "group": "ceilings", "op": "copy",
            "bytes": 64 * MIB, "skipped": [],
            "contestants": [line("copy: torch", "ceiling", 1e-3, gigabytes_per_second=50.0)],
        },
        {
            "name": "quantize/mxfp4/4096x4096/float32", "group": "primitives", "op": "quantize",
            "format": "mxfp4", "dtype": "float32", "reads": 1, "bytes": 10, "shape": [4096, 4096],
            "contestants": [
                line("blockscale", "ours", 2e-3, of_copy=0.5, backend="reference",
                     targets={"of_copy": {"at_least": 0.8}}),
                line("torchao mxfp4 eager", "peer", 2e-2, of_copy=0.05),
            ],
            "skipped": [{"name": "late", "reason": "OSError: no library"}],
        },
        {
            "name": "linear/4096x4096/m=1", "group": "linear", "op": "linear", "m": 1, "k": 4096,
            "n": 4096, "operations": 2 * 4096**2,
            "skipped": [{"name": "late", "reason": "OSError: no library"}],
            "contestants": [
                line("torch fp32", "ceiling", 0.01, relative=1.0),
                line("onnxruntime fp32", "peer", 1e-4, relative=0.01),
                line("bfp8 x bfp8", "ours", 0.001, relative=0.1, bytes=10**7, of_copy=0.4,
                     targets={"relative": {"at_most": 0.2}}),
            ],
        },
    ]  # fmt: skip
    about = results.about(Settings())
    return about | {"complete": True, "seconds": 3.0, "cases": cases, "when": "2026-01-01"}


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


def test_floors_follow_bytes_or_operations():
    run = invented()
    case = run["cases"][2]
    assert floors.floors(run) == {"bfp8 x bfp8": {1: pytest.approx(1e7 / 50e9 / 0.01)}}
    case["contestants"][2]["bytes"] = 1  # then onnxruntime's rate counts, in integers four times
    assert floors.floors(run) == {"bfp8 x bfp8": {1: pytest.approx(0.01 / 4)}}
    case["contestants"][2]["name"] = "mxfp4 weights"
    assert floors.floors(run) == {"mxfp4 weights": {1: pytest.approx(0.01)}}
    assert floors.floors(run | {"cases": run["cases"][1:]}) == {}
    assert tables.predicted(run | {"cases": []}).rows == []


def test_charts_are_well_formed():
    bars = charts.bars("a < b", {"x": {"q": 0.5, "d": 1.5}, "y": {"q": 0.25}}, ("q", "d"))
    widths = re.findall(r'width="([0-9.]+)" height="8"', bars)
    assert [float(w) for w in widths] == pytest.approx([430 / 3, 430, 430 / 6], abs=0.1)
    curves = charts.curves("c", {"x": {1: 0.1, 512: 0.01}, "y": {1: 20.0}})
    for text in (bars, curves):
        assert ET.fromstring(text).tag.endswith("svg")
    assert charts.curves("c", {"x": {1: 0.001}})  # below the axis: drawn on it


def save(path, **changes):
    path.write_text(json.dumps(invented() | changes))
    return path


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
    assert all(path.suffix == ".json" for path in results.committed())


def test_committed_runs_are_whole():
    for path in results.committed():
        data = json.loads(Path(path).read_text())
        if results.is_run(data):
            assert data["complete"] or data["settings"]["device"] == "cuda", path
            assert data["settings"]["full"], path
