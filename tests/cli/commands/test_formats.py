# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale formats`, and the command line as a whole."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from blockscale.cli.app import app
from blockscale.core.parse import formats, parse

ROOT = Path(__file__).parents[3]


def run(*args):
    return CliRunner().invoke(app, list(args))


MORE = [
    *(
        "int5:group64:bf16:full",
        "uint3:tensor:fp32",
        "int4:group32:fp16:signed",
        "log8f3:token:fp32",
    ),
    *("nf4:flat64:fp32", "iq4_nl:group32:fp16", "fp4:group64:fp32", "int8:group32:e8m0/given"),
    "uint4:group32:(uint6:group8:fp16):offset(uint6:group8:fp16)",
]


def test_the_catalogue():
    lines = [line.split() for line in run("formats").stdout.splitlines()]
    assert lines[0] == ["name", "spelling", "largest", "smallest", "range", "dB", "bits"]
    rows = {
        line[0]: line[1:]
        for line in lines[1:]
        if len(line) == 6 and line[-1] != "element:block:scale[:option...]"
    }
    assert rows.keys() == formats().keys()
    assert rows["mxfp4"] == ["e2m1:group32:e8m0/floor", "6", "0.5", "21.6", "4.250"]
    assert rows["mxint8"][1:3] == ["1.98438", "0.015625"]  # OCP's fixed-point numbers below 2
    assert rows["nvfp4"][-1] == "4.500"
    assert rows["uint4"][-1] == "4.500"  # zero points too


def test_the_catalogue_as_json():
    rows = json.loads(run("formats", "--json").stdout)
    assert {row["name"]: row["spelling"] for row in rows} == {
        n: str(f) for n, f in formats().items()
    }


@pytest.mark.some(4)
@pytest.mark.parametrize("name", [*formats(), *MORE])
def test_one_format(name):
    data = json.loads(run("formats", name, "--json").stdout)
    fmt = parse(name)
    assert data["spelling"] == str(fmt)
    if fmt.bits > 8:
        assert data["values"] is None
        return
    values = [each["value"] for each in data["values"] if each["value"] is not None]
    assert max(abs(value) for value in values) == data["largest"]
    assert min(value for value in values if value > 0) == data["smallest"]


def test_values():
    text = run("formats", "mxfp4").stdout
    grid = text.partition("values:\n")[2].split()
    assert grid[::2] == [f"{code:x}" for code in range(16)]
    assert grid[1:16:2] == ["0", "0.5", "1", "1.5", "2", "3", "4", "6"]
    assert [
        each["code"] for each in json.loads(run("formats", "int2", "--json").stdout)["values"]
    ] == [0, 1, 3]
    wide = json.loads(run("formats", "int2:tensor:fp32:full", "--json").stdout)
    assert [each["value"] for each in wide["values"]] == [0, 1, -2, -1]
    assert "7f NaN" in run("formats", "fp8").stdout


def test_an_unknown_format():
    result = run("formats", "mxfp5")
    assert result.exit_code == 1
    assert result.stderr.startswith("blockscale: unknown format 'mxfp5': did you mean mxfp")
