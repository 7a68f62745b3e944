# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale compare`: text and JSON."""

import json

import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from blockscale.cli.app import app
from tests.cli.words import words


def run(*args):
    return CliRunner().invoke(app, list(map(str, args)))


def test_compare(folders):
    lines = words(run("compare", *folders).stdout)
    assert lines[0] == "tensor shape a b bits a bits b SQNR dB max error"
    [line] = [line for line in lines if line.startswith("embed.weight")]
    assert line.startswith("embed.weight 50 x 40 bfloat16 mxfp4 16.00 4.40 ")
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


def test_what_another_producer_packed_is_listed(tmp_path):
    save_file({"l.weight": torch.ones(8, 32), "n": torch.ones(2)}, tmp_path / "a")
    save_file(
        {"l.qweight": torch.ones(4, 8, dtype=torch.int32), "n": torch.ones(2)}, tmp_path / "b"
    )
    lines = words(run("compare", tmp_path / "a", tmp_path / "b").stdout)
    assert lines[-2:] == [
        "1 of 1 tensors are equal",
        "not compared: l.weight: l.qweight holds codes of GPTQ or AWQ, but the tensors "
        "beside them are not those of that layout: dequantize it with its own library first",
    ]


def test_errors(tmp_path):
    result = run("compare", tmp_path / "nowhere", tmp_path / "nowhere")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == f"blockscale: {tmp_path / 'nowhere'} does not exist\n"
