# SPDX-License-Identifier: BSD-3-Clause
"""torch.export's files: weights by the nodes that read them; zips that lie."""

import json
import zipfile

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.export.auditing import pt2_file
from blockscale.export.auditing.entries import DamagedError
from blockscale.files.metadata import FileError


def written(path, recipe="int4", **settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).eval()
    ledger = bs.quantize_(model, bs.Recipe(recipe, **settings))
    bs.export.program(model, path, torch.randn(2, 256))
    return model, ledger


def changed(source, target, edit):
    """A copy of a zip with some parts changed: {name after the folder: bytes or None}."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for part in old.infolist():
            name = part.filename.partition("/")[2]
            content = edit.get(name, old.read(part))
            if content is not None:
                new.writestr(part.filename, content)


@pytest.mark.parametrize("fmt", ["int4", "mxfp4", "uint4", "nvfp4"])
def test_formats_and_bytes(tmp_path, fmt):
    model, ledger = written(tmp_path / "m.pt2", fmt)
    found = bs.export.audit(tmp_path / "m.pt2", ledger)
    assert found["0"].weight == str(bs.parse(fmt)) and not found.skipped
    assert found["0"].elements == 256 * 256
    assert found["0"].bytes_after == model[0].weight.nbytes
    assert "linear of blockscale" in found["0"].details
    assert found["0.bias"].status == "kept"


@pytest.mark.slow
def test_converted_graphs(tmp_path):
    model = nn.Sequential(nn.Linear(64, 64)).eval()
    x = torch.randn(4, 64)
    graph = bs.graph.prepare(torch.export.export(model, (x,)), bs.Recipe("mxfp4", "int8"))
    graph(x)
    bs.export.program(bs.graph.convert(graph), tmp_path / "m.pt2")
    found = bs.export.audit(tmp_path / "m.pt2")
    assert found["0"].weight == str(bs.parse("mxfp4"))
    assert "dequantize of blockscale" in found["0"].details


def test_a_planted_float_weight(tmp_path):
    """Its ledger says int4; the file holds floats."""
    _, ledger = written(tmp_path / "m.pt2")
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).eval()
    bs.quantize_(model, bs.Recipe("int4", skip=["0"]))
    bs.export.program(model, tmp_path / "planted.pt2", torch.randn(2, 256))
    found = bs.export.audit(tmp_path / "planted.pt2", ledger)
    assert [entry.name for entry in found.skipped] == ["0.weight"]
    assert "its ledger says int4:group128:fp32: float32 in the file" in found.skipped[0].reason


def test_pickles_are_not_opened(tmp_path, monkeypatch):
    written(tmp_path / "m.pt2")
    monkeypatch.setattr("pickle.loads", lambda *_: pytest.fail("a pickle was opened"))
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("a pickle was opened"))
    assert len(bs.export.audit(tmp_path / "m.pt2").quantized) == 2


def test_hostile_zips(tmp_path):
    source, target = tmp_path / "m.pt2", tmp_path / "bad.pt2"
    written(source)
    with zipfile.ZipFile(source) as archive:
        names = [part.filename.partition("/")[2] for part in archive.infolist()]
        [config] = [n for n in names if n.endswith("_weights_config.json")]
        held = json.loads(archive.read(archive.infolist()[0].filename.split("/")[0] + "/" + config))
    [model] = [n for n in names if n.startswith("models/")]
    weight = next(n for n in names if n.startswith("data/weights/weight_"))
    cases = [
        ({model: None}, "torch.export did not write it"),
        ({model: b"{"}, "is not JSON"),
        ({model: b"{}"}, "its graph is not one of torch.export"),
        ({model: b"[" * 100_000}, "is not JSON"),
        ({weight: b""}, "has 0 bytes"),
        ({weight: None}, "which is not there"),
    ]
    for edit, why in cases:
        changed(source, target, edit)
        with pytest.raises(FileError, match=why):
            bs.export.audit(target)
    assert held["config"]


def test_a_bomb(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.pt2", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/models/model.json", b" " * 5_000_000 + b"{}")
    with pytest.raises(DamagedError, match="would be 5,000,002 bytes of text"):
        pt2_file.tensors(tmp_path / "bomb.pt2")


def test_cut_short(tmp_path):
    written(tmp_path / "m.pt2")
    data = (tmp_path / "m.pt2").read_bytes()
    (tmp_path / "cut.pt2").write_bytes(data[: len(data) // 2])
    with pytest.raises(FileError, match="not a complete zip archive"):
        bs.export.audit(tmp_path / "cut.pt2")
