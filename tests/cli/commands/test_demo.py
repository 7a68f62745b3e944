"""`blockscale demo`: rows as a table and as JSON. What they measure is tested with the model."""

import json

import pytest
from typer.testing import CliRunner

from blockscale.cli.app import app
from blockscale.cli.commands import demo
from blockscale.demo.run import RECIPES, Row

ROW = Row("float32", 90_900_000, 32.0, float("inf"), 1.0, 1.0, 1.0, 0.0, 0.25)


class Invented:
    """Measures nothing."""

    float_row = ROW

    def measure(self, name, recipe):
        assert RECIPES[name] is recipe
        return Row(name, 12_200_000, 4.25, 18.72, 0.96134, 0.94731, 0.94881, 0.5, 1.5)


@pytest.fixture(autouse=True)
def _invented(monkeypatch):
    monkeypatch.setattr(demo, "Demo", Invented)


def test_the_table(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 0, result.output
    rows = [line.split("│")[1:-1] for line in result.stdout.splitlines() if line.startswith("│")]
    cells = {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows}
    assert cells.keys() == {"float32", *RECIPES}
    assert cells["float32"][:3] == ["90.9", "32.00", "inf dB"]
    assert cells["mxfp4"] == [
        "12.2", "4.25", "18.7 dB", "0.9613", "0.9473", "0.9488", "0.5", "1.50",
    ]  # fmt: skip
    assert "layers ran on" in " ".join(result.stdout.split())


def test_json():
    result = CliRunner().invoke(app, ["demo", "--json"])
    rows = json.loads(result.stdout)
    assert [row["name"] for row in rows] == ["float32", *RECIPES]
    assert rows[1]["bits_per_weight"] == 4.25


def test_where_layers_ran(monkeypatch):
    monkeypatch.setattr(demo, "unavailable", lambda backend: None)
    assert demo._layers_ran_on() == "layers ran on the native CPU kernels"
    monkeypatch.setattr(demo, "unavailable", lambda backend: "it was not built")
    assert demo._layers_ran_on().endswith("which is exact and not fast: it was not built")
