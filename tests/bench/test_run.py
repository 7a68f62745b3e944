"""Every case runs; what is measured is kept whatever happens; a run goes on where it stopped."""

import importlib.util
import json
from dataclasses import replace

import pytest
import torch

import blockscale as bs
from blockscale.bench import results, rivals, run, targets
from blockscale.bench.case import Peer, Skipped
from blockscale.bench.groups import linear
from blockscale.bench.peers import onnxruntime, torch_own, torchao
from blockscale.bench.requests import Layer, Primitive
from blockscale.bench.settings import FULL, GPU, QUICK, TINY, Settings, sizes
from blockscale.bench.tune import tune
from tests.bench.runs import FEW, SETTINGS, Heard, measured

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


def test_figures(everything):
    cases = {case["name"]: case for case in everything}
    case = cases["quantize/mxfp4/4x256/float32"]
    ours, *copied = case["contestants"]
    assert ours["backend"] in ("cpu", "reference")
    best = min(line["seconds"] for line in copied)
    assert ours["of_copy"] == pytest.approx(best / ours["seconds"])
    assert (case["bytes"], case["reads"]) == (4 * 1024 + 512 + 32, 1)
    case = cases["linear/256x32/m=1"]
    lines = {line["name"]: line for line in case["contestants"]}
    assert set(lines) >= {linear.label(*recipe) for recipe in linear.RECIPES}
    one = lines["mxfp4 weights"]
    assert one["relative"] == pytest.approx(one["seconds"] / lines["torch fp32"]["seconds"])
    assert one["bytes"] == 32 * (128 + 8)


def test_the_model():
    [case] = measured(replace(SETTINGS, only="model/"))
    fp32, ours = case["contestants"]
    assert fp32["relative"] == 1
    assert 0.9 < ours["cosine"] < 1


@pytest.mark.slow
def test_the_model_and_its_peers():
    [case] = measured(replace(SETTINGS, peers=True, only="model/"))
    assert not case["skipped"]
    fp32, ours, *peers = case["contestants"]
    assert [line["kind"] for line in case["contestants"]] == ["ceiling", "ours", "peer", "peer"]
    assert fp32["relative"] == 1
    for line in (ours, *peers):
        assert 0.8 < line["cosine"] < 1
        assert line["relative"] == pytest.approx(line["seconds"] / fp32["seconds"])


def test_promises_are_about_one_shape():
    case = bs.parse
    shape = targets.MATRIX

    def least(op, fmt, dtype="float32"):
        return targets.primitive(op, case(fmt), shape, dtype)["of_copy"]

    assert least("quantize", "mxfp8") == ("at_least", 0.9)
    assert least("quantize", "mxfp4") == least("quantize", "mxfp6") == ("at_least", 0.8)
    assert least("dequantize", "mxfp4") == least("quantize", "ternary") == ("at_least", 0.9)
    assert least("quantize", "int8:group32:e8m0:stochastic") == ("at_least", 0.7)
    assert least("quantize", "int8:group32@0:fp32") == ("at_least", 0.7)
    assert least("dequantize", "e2m1:tile4x4:e8m0") == ("at_least", 0.7)
    assert least("quantize", "mxfp4", "bfloat16") == ("at_least", 0.75)
    assert targets.primitive("quantize", case("mxfp8"), (4, 256), "float32") == {}
    assert targets.linear("mxfp4", None, shape, 1) == {"of_copy": ("at_least", 0.6)}
    assert targets.linear("bfp8", "bfp8", shape, 512) == {"relative": ("at_most", 0.18)}
    assert targets.linear("bfp8", "bfp8", (384, 1536), 512) == {}
    assert targets.met({"of_copy": ("at_least", 0.9)}, {"of_copy": 0.9}) is True
    assert targets.met({"relative": ("at_most", 0.1)}, {"relative": 0.11}) is False
    assert targets.met({}, {"relative": 0.11}) is None


def test_gpu_promises():
    case, shape = bs.parse, targets.GPU_MATRIX

    def least(op, fmt, dtype="float32"):
        return targets.primitive(op, case(fmt), shape, dtype)["of_copy"][1]

    assert least("quantize", "mxfp4") == least("dequantize", "int8_channel") == 0.95
    assert least("quantize", "mxfp4", "bfloat16") == least("quantize", "mxfp6", "bfloat16") == 0.87
    assert (
        least("quantize", "mxfp8", "bfloat16") == least("dequantize", "nvfp4", "bfloat16") == 0.93
    )
    assert least("quantize", "int8_token") == least("quantize", "int8:group32@0:fp32") == 0.85
    assert least("fake_quantize", "e2m1:group32:e8m0:stochastic", "bfloat16") == 0.7
    square, sweep = (8192, 8192), (8192, 28672)
    assert targets.linear("nvfp4", None, sweep, 16, "cuda") == {
        "relative": ("at_most", 1.05),
        "of_copy": ("at_least", 0.75),
    }
    assert targets.linear("mxfp6", None, sweep, 4096, "cuda") == {"relative": ("at_most", 1.05)}
    assert targets.linear("int8_channel", "int8_token", sweep, 16, "cuda") == {}
    assert targets.linear("int8_channel", "int8_token", square, 4096, "cuda") == {
        "relative": ("at_most", 0.741)
    }
    recipes = set(linear.recipes(Settings("cuda")))
    assert set(targets._GPU_LINEAR) <= recipes
    assert {targets._GPU_SQUARE, targets._GPU_SWEEP} == set(GPU.linear)


def test_settings_of_a_gpu(monkeypatch):
    monkeypatch.setattr("blockscale.bench.requests.last_cache", lambda device: 50 << 20)
    ours = Settings("cuda:1", sizes=GPU)
    assert (ours.kind, ours.dtype, ours.full) == ("cuda", torch.bfloat16, True)
    assert sizes("cuda:1", quick=False) is GPU
    assert sizes("cpu", quick=True) is QUICK
    assert linear.baseline(ours) == "torch bf16"
    names = [case.name for case in run.every_case(ours)]
    assert len(names) == len(set(names))
    assert "quantize/mxfp4/16384x16384/bfloat16" in names
    assert "linear/8192x28672/m=8192" in names


def test_tuning_asks_for_every_shape_of_the_run():
    asked, said = [], []
    sizes = replace(GPU, linear={(64, 32): (1, 8)})

    def tuner(weight, given, shape):
        if weight.startswith("ternary"):
            raise ValueError("there is nothing to tune")
        asked.append((weight, given, shape))

    tune(Settings("cuda", sizes=sizes), said.append, tuner)
    assert ("int8:channel0:fp32", "int8:token:fp32", (8, 32, 64)) in asked
    assert ("e2m1:group16:e4m3", "", (1, 32, 64)) in asked
    assert len(asked) == 2 * (len(linear.GPU_RECIPES) - 1)
    assert "not tuned: ternary weights: there is nothing to tune" in said
    with pytest.raises(ValueError, match="only CUDA kernels have choices"):
        tune(SETTINGS, said.append, tuner)


def test_every_promise_of_a_linear_layer_is_measured():
    assert set(targets._LINEAR) <= set(linear.RECIPES)
    rows = {m for rule in targets._LINEAR.values() for m in rule}
    assert rows <= set(FULL.linear[targets.MATRIX])
    assert rows <= set(QUICK.linear[targets.MATRIX])


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


def test_another_run_does_not_go_on(tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    with pytest.raises(KeyboardInterrupt):
        run.run(FEW, path, False, Heard(KeyboardInterrupt(), at=1))
    with pytest.raises(ValueError, match=r"its settings was quick False, not True; measure anew"):
        run.run(replace(FEW, quick=True), path, True, Heard())
    monkeypatch.setattr(results, "commit", lambda: "another")
    with pytest.raises(ValueError, match=r"its commit was '.*', not 'another'"):
        run.run(FEW, path, True, Heard())
    path.write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        run.run(FEW, path, True, Heard())
    path.write_text("{}")
    with pytest.raises(ValueError, match="is no file of `blockscale bench`"):
        run.run(FEW, path, True, Heard())


def test_a_write_that_fails_leaves_the_file_and_nothing_else(tmp_path):
    made = results.Results(tmp_path / "run.json", {"schema": 1, "cases": []})
    made.write()
    made.data["cases"].append(object())
    with pytest.raises(TypeError):
        made.write()
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert json.loads(made.path.read_text())["cases"] == []


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
    with pytest.raises(ValueError, match="no case is called like 'nothing'"):
        run.run(replace(FEW, only="nothing"), tmp_path / "run.json", False, Heard())
    with pytest.raises(ValueError, match="no clock for device 'meta'"):
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


def test_our_own_failure_is_an_error(monkeypatch):
    monkeypatch.setattr(bs, "quantize", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        measured(replace(SETTINGS, only="quantize/mxfp4/"))


PEERS = {
    "torch_own": ["torch bf16", "torch dynamic int8", "torch._int_mm"],
    "torchao": ["torchao int8 dynamic eager"],
    "onnxruntime": [
        "onnxruntime fp32",
        "onnxruntime DynamicQuantizeMatMul int8",
        "onnxruntime MatMulNBits int4 group 32",
    ],
}


def test_peers_run():
    [case] = measured(replace(SETTINGS, peers=True, only="linear/256x32/m=2"))
    found = {line["name"] for line in case["contestants"]}
    expected = dict(PEERS)
    if any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxruntime")):
        del expected["onnxruntime"]  # no part of the test's requirements
    else:
        assert not case["skipped"]
    assert {name for names in expected.values() for name in names} <= found


@pytest.mark.parametrize("name", ["int8", "int8_channel", "mxfp8", "mxfp4", "nvfp4"])
def test_peers_of_primitives_run(name):
    cases = measured(replace(SETTINGS, peers=True, formats=(name,), only="quantize/"))
    assert not any(case["skipped"] for case in cases)
    [case] = [case for case in cases if case["name"].startswith("quantize/")]
    assert case["contestants"][-1]["kind"] == "peer"


def test_peers_compute_the_layer():
    """What races beside ours is the same product, as far as int8 and int4 can say."""
    layer = Layer(256, 32)
    x = Primitive("quantize", "int8", (4, 256), layer.weight.dtype).x
    expected = x @ layer.weight.T

    def finish(peer, bind):
        return peer.name, bind(x)()

    with torch.no_grad():
        for found in rivals.rivals("linear", layer, finish):
            if isinstance(found, Skipped) or found[0] == "torch._int_mm":
                continue
            name, y = found
            y = torch.as_tensor(y[0] if isinstance(y, list) else y).float()
            error = (y - expected).norm() / expected.norm()
            assert error < (0.15 if "int4" in name else 0.02), name


def test_what_is_quick_is_a_part(tmp_path):
    quick = Settings(quick=True, sizes=QUICK)
    assert not quick.full
    assert AHEAD.full
    assert not replace(AHEAD, peers=False).full
    assert not replace(AHEAD, sizes=TINY).full
    assert len(list(run.every_case(quick))) < len(list(run.every_case(AHEAD))) / 2
