# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale inspect`: text and JSON."""

import json
from pathlib import Path

from typer.testing import CliRunner

from blockscale.cli.app import app
from blockscale.export.checkpoints.gguf import reading
from tests.cli.words import words
from tests.support.file_models import tiny_tensors

RECORDED = Path(__file__).parents[2] / "recorded"


def run(*args):
    return CliRunner().invoke(app, list(map(str, args)))


def test_inspect(folders):
    lines = words(run("inspect", folders[1]).stdout)
    assert lines[0] == "blockscale: its metadata have `blockscale`; 2 layers"
    assert lines[2] == "tensor count shape format size bits"
    what = "mxfp4, input int8_token"
    assert f"layers.*.proj.weight 2 33 x 40 {what} 1.5 kB 4.40" in lines
    conv = "mxfp4, channels_last, input int8_token"
    assert f"conv.weight 1 6 x 4 x 3 x 3 {conv} 120 B 4.44" in lines
    assert "steps 1 scalar int64 8 B 64.00" in lines
    assert "mxfp4 7 9,376 5.2 kB 4.40" in lines
    assert lines[-1].startswith("2 files: model-00001-of-00002.safetensors ")
    lines = words(run("inspect", folders[1], "--all").stdout)
    assert f"layers.1.proj.weight 1 33 x 40 {what} 726 B 4.40" in lines


def test_inspect_json(folders):
    data = json.loads(run("inspect", folders[1], "--json").stdout)
    assert {row["name"] for row in data["tensors"]} == tiny_tensors().keys()
    assert data["formats"][0]["format"] == "e2m1:group32:e8m0/floor"
    assert (data["producer"], data["layers"], data["warnings"]) == ("blockscale", 2, [])


def test_other_producers(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "find_spec", lambda name: None)  # the package gguf reads IQ2_XXS
    lines = words(run("inspect", RECORDED / "modelopt.safetensors").stdout)
    assert lines[0] == "NVIDIA ModelOpt: it has nvfp4.weight_scale_2"
    assert lines[1] == "warning: the input of awq is multiplied by its pre_quant_scale"
    assert "mxfp4.weight 1 6 x 64 e2m1:group32:e8m0/given 204 B 4.25" in lines
    lines = words(run("inspect", RECORDED / "small.gguf").stdout)
    told = "holds vectors of a ggml grid"
    assert any(f"not read: blk.0.IQ2_XXS.weight: IQ2_XXS {told}" in line for line in lines)
    data = json.loads(run("inspect", RECORDED / "small.gguf", "--json").stdout)
    assert data["unread"].keys() == {"blk.0.IQ2_XXS.weight"} and data["producer"] == "GGUF"
    (tmp_path / "model.bin").write_bytes(b"\x80\x04x")
    result = run("inspect", tmp_path / "model.bin")
    assert result.exit_code == 1 and "opened, so blockscale never opens one." in result.stderr


def test_errors(tmp_path):
    result = run("inspect", tmp_path / "nowhere")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == f"blockscale: {tmp_path / 'nowhere'} does not exist\n"
