# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale presets`: the list, one of them, and JSON."""

import json

from typer.testing import CliRunner

import blockscale as bs
from blockscale.cli.app import app


def run(*args):
    return CliRunner().invoke(app, ["presets", *args])


def test_the_list():
    result = run()
    assert result.exit_code == 0, result.output
    first = [line.split("  ")[0] for line in result.stdout.splitlines()[1:]]
    assert [name for name in first if name] == list(bs.presets())
    line = next(each for each in result.stdout.splitlines() if each.startswith("w8a8 "))
    assert "int8_channel" in line
    assert "transform smoothquant" in line
    assert "decoder: loss added 0.0096, KL 0.0094, agreement 94.4%" in line


def test_one_of_them():
    result = run("w4a4-nvfp4")
    assert result.stdout.startswith("w4a4-nvfp4: NVFP4 pairs")
    assert '"transform": "smoothquant"' in result.stdout
    assert "16 × 512 tokens of Python's help texts; 2026-11-27 on NVIDIA H200" in result.stdout


def test_json_reads_back():
    told = json.loads(run("--json").stdout)
    assert [each["name"] for each in told] == list(bs.presets())
    one = json.loads(run("w4a16", "--json").stdout)
    assert one == bs.presets()["w4a16"].to_dict()
    assert bs.Recipe.from_dict(one["recipe"]).calibration == bs.preset("w4a16").calibration


def test_an_unknown_one():
    result = run("w4a17")
    assert result.exit_code == 1
    assert result.stderr.startswith("blockscale: unknown preset 'w4a17'; choose from w4a16, ")


def test_what_was_not_measured_says_so(monkeypatch):
    monkeypatch.setattr("blockscale.core.presets._figures", dict)
    assert run().stdout.count("not measured") == len(bs.presets())
    assert run("w8a8").stdout.endswith("not measured yet\n")
