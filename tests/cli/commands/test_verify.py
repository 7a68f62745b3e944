# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale verify`: what is right, what is not, and once more."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from blockscale.cli.app import app
from tests.support.file_models import tiny_tensors, write_model


def run(*args: object) -> Result:
    return CliRunner().invoke(app, list(map(str, args)))


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, Path]:
    model, out = write_model(tmp_path / "model", tiny_tensors(), 2), tmp_path / "out"
    assert run("quantize", model, out, "-r", "mxfp4", "-q").exit_code == 0
    return model, out


def test_right(made: tuple[Path, Path]) -> None:
    model, out = made
    found = run("verify", out)
    assert found.exit_code == 0 and "are as the ledger says" in found.stdout
    found = run("verify", out, "--reproduce", model)
    assert found.exit_code == 0 and "are made again with the same bytes" in found.stdout
    data = json.loads(run("verify", out, "--json").stdout)
    assert data["wrong"] == {} and "config.json" in data["proved"]
    assert run("verify", out, "-q").stdout == ""


def test_wrong(made: tuple[Path, Path]) -> None:
    _, out = made
    (out / "[red]\x1b[31m.txt").write_text("x")
    (out / "config.json").unlink()
    found = run("verify", out)
    assert found.exit_code == 1 and "config.json: is missing" in found.stderr
    assert "\x1b" not in found.stderr and "[red]" in found.stderr
    assert "is not in the ledger" in found.stderr
    assert set(json.loads(run("verify", out, "--json").stdout)["wrong"]) >= {"config.json"}


def test_errors(made: tuple[Path, Path], tmp_path: Path) -> None:
    found = run("verify", tmp_path)
    assert found.exit_code == 1 and "has no blockscale_ledger.json" in found.stderr
