# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale audit`: text, JSON, and a ledger that does not hold."""

import json

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import blockscale as bs
from blockscale.cli.app import app
from tests.cli.words import words


def run(*args):
    return CliRunner().invoke(app, ["audit", *map(str, args)])


@pytest.fixture
def file(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(3)))
    ledger = bs.quantize_(model, bs.Recipe("int4", skip=["2"]))
    bs.save(model, tmp_path / "m.safetensors")
    (tmp_path / "ledger.json").write_text(ledger.to_json())
    return tmp_path / "m.safetensors"


@pytest.mark.slow
def test_text(file):
    result = run(file)
    assert result.exit_code == 0
    lines = words(result.stdout)
    assert lines[0] == "tensor count stored bits as computed"
    assert "quantized * 2 69.6 kB 4.25 int4 read by blockscale" in lines
    assert any(
        line.startswith("kept 2.weight 1 262.1 kB 32.00 float32 in the file") for line in lines
    )
    assert lines[-1].startswith("2 quantized, 4 kept, 0 skipped;")
    assert "quantized 1 1 34.8 kB 4.25" in " ".join(words(run(file, "--all").stdout))


def test_json(file):
    data = json.loads(run(file, "--json").stdout)
    assert {entry["status"] for entry in data["entries"]} == {"quantized", "kept"}


def test_a_ledger_that_holds_and_one_that_does_not(file, tmp_path):
    assert run(file, "--ledger", tmp_path / "ledger.json").exit_code == 0
    data = json.loads((tmp_path / "ledger.json").read_text())
    for entry in data["entries"]:
        if entry["name"] == "2":
            entry |= {"status": "quantized", "weight": "int4:group128:fp32"}
    (tmp_path / "planted.json").write_text(json.dumps(data))
    result = run(file, "--ledger", tmp_path / "planted.json")
    assert result.exit_code == 1
    assert "2.weight: its ledger says int4:group128:fp32: float32 in the file" in result.stderr


def test_errors(file, tmp_path):
    (tmp_path / "x.json").write_text("[]")
    assert "is not a ledger" in run(file, "--ledger", tmp_path / "x.json").stderr
    entry = {"name": "a", "kind": "matrix", "status": "kept"}
    for text in (
        "[" * 10_000, '{"entries": 5}', '{"entries": [5]}', '{"entries": [{"name": 5}]}',
        json.dumps({"entries": [entry | {"elements": "1"}]}), "\0",
        json.dumps({"entries": [entry | {"notes": 5}]}), '{"entries": [], "entries": []}',
    ):  # fmt: skip
        (tmp_path / "x.json").write_text(text)
        assert "is not a ledger" in run(file, "--ledger", tmp_path / "x.json").stderr
    (tmp_path / "x.gguf").write_text("GGUF....")
    result = run(tmp_path / "x.gguf")
    assert result.exit_code == 1 and "an audit reads .onnx" in result.stderr
