# SPDX-License-Identifier: BSD-3-Clause
"""Every case runs; what is measured is kept whatever happens; a run goes on where it stopped."""

import json
from dataclasses import replace

import pytest

import blockscale as bs
from blockscale.bench import run
from blockscale.bench.settings import FULL, Settings
from tests.support.bench_runs import FEW, SETTINGS, Heard, measured

AHEAD = Settings()  # what a full run would be


@pytest.fixture(autouse=True)
def _brief(monkeypatch):
    monkeypatch.setattr(run, "_LONGEST", {True: 0.001, False: 0.001})


@pytest.fixture(scope="module")
def everything():
    """Of all groups but the model, which takes seconds to load and has a test of its own."""
    cases = [case for case in run.every_case(SETTINGS) if case.group != "model"]
    return [run.measure(case, SETTINGS, 0.0) for case in cases]


def test_every_case_runs(everything):
    assert {case["group"] for case in everything} == {g.GROUP for g in run.GROUPS} - {"model"}
    for case in everything:
        assert not case["skipped"]
        for line in case["contestants"]:
            assert line["seconds"] >= line["least_seconds"] > 0
            assert line["rounds"] == line["calls"] == 1
            assert line["kind"] in ("ours", "peer", "ceiling")
    json.dumps(everything)


def test_every_named_format_and_op_is_measured():
    names = [case.name for case in run.every_case(AHEAD)]
    assert len(names) == len(set(names))
    for fmt in bs.formats():
        for op in ("quantize", "dequantize", "fake_quantize"):
            assert f"{op}/{fmt}/4096x4096/float32" in names
    for rows in FULL.linear[4096, 4096]:
        assert f"linear/4096x4096/m={rows}" in names
    assert "model/all-MiniLM-L6-v2/32x64" in names
    assert names[0].startswith("ceilings/copy/")


def test_the_file_is_complete(tmp_path):
    heard = Heard()
    found = run.run(FEW, tmp_path / "run.json", False, heard)
    data = json.loads((tmp_path / "run.json").read_text())
    assert data == found.data
    assert data["complete"] is True
    assert not data["settings"]["full"]
    assert data["hardware"].keys() >= {"processor", "cores", "threads", "cache_bytes", "native"}
    assert data["versions"].keys() >= {"python", "torch", "blockscale", "torchao", "onnxruntime"}
    assert {"when", "commit", "environment", "seconds"} <= data.keys()
    assert len(data["cases"]) == 4
    assert heard.total == (4, 0)
    assert heard.began == heard.ended == [case["name"] for case in data["cases"]]
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.slow
def test_stopped_and_gone_on_with(tmp_path):
    path = tmp_path / "run.json"
    with pytest.raises(KeyboardInterrupt):
        run.run(FEW, path, False, Heard(KeyboardInterrupt(), at=2))
    first = json.loads(path.read_text())
    assert (len(first["cases"]), first["complete"]) == (2, False)
    heard = Heard()
    found = run.run(FEW, path, True, heard)
    assert heard.total == (4, 2)
    assert len(heard.began) == 2
    assert found.data["cases"][:2] == first["cases"]
    assert found.data["complete"]


def test_time_is_over(tmp_path):
    heard = Heard()
    found = run.run(replace(FEW, seconds=0.0), tmp_path / "run.json", False, heard)
    assert not found.data["complete"]
    assert heard.said == ["0 seconds are over; 4 cases are not measured"]


def test_what_takes_too_long_shortens_what_follows(tmp_path, monkeypatch):
    """A run whose first case compiles for long still measures all, and ends in time."""
    now, given = [0.0], []

    def slow(case, settings, seconds):
        given.append(seconds / case.weight)
        now[0] += seconds + (0.0 if len(given) > 1 else 60.0)
        return {"name": case.name, "group": case.group, "contestants": [], "skipped": []}

    monkeypatch.setattr(run, "_LONGEST", {True: 1e9, False: 1e9})
    monkeypatch.setattr(run, "measure", slow)
    monkeypatch.setattr(run.time, "monotonic", lambda: now[0])
    found = run.run(replace(FEW, seconds=100.0), tmp_path / "run.json", False, Heard())
    assert found.data["complete"]
    assert now[0] <= 100.0
    assert given[1] < given[0] / 2


def test_nothing_to_measure(tmp_path):
    with pytest.raises(ValueError, match="no case matches 'nothing'"):
        run.run(replace(FEW, only="nothing"), tmp_path / "run.json", False, Heard())
    with pytest.raises(ValueError, match="cannot measure on device 'meta'; choose from cpu, cuda"):
        run.run(replace(FEW, device="meta"), tmp_path / "run.json", False, Heard())


def test_choosing_cases():
    only = [case.name for case in run.every_case(replace(SETTINGS, only="linear/*/m=2"))]
    assert only == ["linear/256x32/m=2"]
    chosen = replace(SETTINGS, formats=("mxfp4", "int5:group64:fp32"), only="linear/256x32/m=2")
    [case] = measured(chosen)
    names = [line["name"] for line in case["contestants"]]
    assert names == ["torch fp32", "mxfp4 weights", "int5:group64:fp32 weights"]
    names = [case.name for case in run.every_case(replace(chosen, only=""))]
    assert "quantize/int5:group64:fp32/4x256/float32" in names
    assert not any(name.startswith("model/") for name in names)


def test_our_own_failure_is_an_error(monkeypatch):
    monkeypatch.setattr(bs, "quantize", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        measured(replace(SETTINGS, only="quantize/mxfp4/"))
