# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale report`."""

import json

import pytest
from typer.testing import CliRunner

from blockscale.cli.app import app


def run(*args):
    return CliRunner().invoke(app, ["report", *map(str, args)])


def test_it_writes_one_file(folders, tmp_path):
    out = tmp_path / "report.html"
    done = run(tmp_path / "out", "--source", tmp_path / "model", "-o", out, "--quiet")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"wrote {out}, ")
    assert f"--source {tmp_path / 'model'}" in out.read_text()


def test_json_is_all_there_is_on_standard_output(folders, tmp_path):
    found = json.loads(run(tmp_path / "out", "--json").stdout)
    assert found["model"]["producer"] == "blockscale"
    assert {"totals", "tensors", "formats", "ledger", "hardware", "versions"} <= found.keys()


def test_a_file_that_exists_stays(folders, tmp_path):
    out = tmp_path / "report.html"
    out.write_text("mine")
    done = run(tmp_path / "out", "-o", out)
    assert done.exit_code == 1
    assert "--force" in done.stderr
    assert out.read_text() == "mine"
    assert run(tmp_path / "out", "-o", out, "--force").exit_code == 0
    assert out.read_text() != "mine"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "no place for the report"),
        (["nothing", "-o", "report.html"], "nothing does not exist"),
        (["nothing", "--json"], "nothing does not exist"),
        (["nothing.json", "--json"], "nothing.json does not exist"),
    ],
)
def test_errors_are_one_message(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert done.exit_code == 1
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []
