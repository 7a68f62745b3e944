"""`blockscale inspect` and `compare`: text and JSON."""

import json
import warnings

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from blockscale.cli.app import app
from blockscale.core.recipe import Recipe
from blockscale.files.directory.quantize_directory import quantize_directory
from tests.files.models import tiny_tensors, write_model


def run(*args):
    return CliRunner().invoke(app, list(map(str, args)))


def words(text):
    return [" ".join(line.split()) for line in text.splitlines()]


@pytest.fixture
def folders(tmp_path):
    warnings.simplefilter("ignore", UserWarning)
    model = write_model(tmp_path / "model", tiny_tensors(), 2)
    quantize_directory(model, tmp_path / "out", Recipe("mxfp4", input="int8_token"))
    return model, tmp_path / "out"


def test_inspect(folders):
    lines = words(run("inspect", folders[1]).stdout)
    assert lines[0] == "tensor count shape format size bits"
    what = "e2m1:group32:e8m0/floor, input int8:token:fp32"
    assert f"layers.*.proj.weight 2 33 x 40 {what} 1.5 kB 4.40" in lines
    conv = "e2m1:group32:e8m0/floor, channels_last, input int8:token:fp32"
    assert f"conv.weight 1 6 x 4 x 3 x 3 {conv} 120 B 4.44" in lines
    assert "steps 1 scalar int64 8 B 64.00" in lines
    assert "e2m1:group32:e8m0/floor 7 9,376 5.2 kB 4.40" in lines
    assert lines[-1].startswith("2 files: model-00001-of-00002.safetensors ")
    lines = words(run("inspect", folders[1], "--all").stdout)
    assert f"layers.1.proj.weight 1 33 x 40 {what} 726 B 4.40" in lines


def test_inspect_json(folders):
    data = json.loads(run("inspect", folders[1], "--json").stdout)
    assert {row["name"] for row in data["tensors"]} == tiny_tensors().keys()
    assert data["formats"][0]["format"] == "e2m1:group32:e8m0/floor"


def test_compare(folders):
    lines = words(run("compare", *folders).stdout)
    assert lines[0] == "tensor shape a b bits a bits b SQNR dB max error"
    [line] = [line for line in lines if line.startswith("embed.weight")]
    assert line.startswith("embed.weight 50 x 40 bfloat16 e2m1:group32:e8m0/floor 16.00 4.40 ")
    assert 15 < float(line.split()[-2]) < 25
    assert lines[-1] == "10 of 17 tensors are equal"


def test_compare_json(folders):
    result = run("compare", *folders, "--json", "--quiet")
    assert result.stderr == ""
    data = json.loads(result.stdout)
    assert {row["name"] for row in data["tensors"] if row["equal"]} >= {"steps", "mask.weight"}


def test_compare_reports_what_does_not_fit(tmp_path):
    nan = torch.tensor([torch.nan, 1.0])
    save_file({"x": nan, "y": torch.ones(2), "z": torch.ones(1)}, tmp_path / "a")
    save_file({"x": torch.ones(2), "y": torch.ones(2, 1), "w": torch.ones(1)}, tmp_path / "b")
    lines = words(run("compare", tmp_path / "a", tmp_path / "b").stdout)
    assert lines[-5:] == [
        "0 of 1 tensors are equal",
        "x: 1 elements are NaN or infinite on one side",
        "y: a is 2, b is 2 x 1",
        "only in a: z",
        "only in b: w",
    ]


@pytest.mark.parametrize("command", ["inspect", "compare"])
def test_errors(command, tmp_path):
    args = [tmp_path / "nowhere"] * (1 + (command == "compare"))
    result = run(command, *args)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == f"blockscale: {tmp_path / 'nowhere'} does not exist\n"
