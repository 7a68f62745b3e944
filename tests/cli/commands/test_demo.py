# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale demo`: rows as a table and as JSON. What they measure is tested with the model."""

import io
import json
import re

import pytest
from rich.console import Console
from typer.testing import CliRunner

from blockscale.cli.app import app
from blockscale.cli.commands import demo
from blockscale.demo import RECIPES, FormatRow
from blockscale.demo.exports import ExportFile
from blockscale.demo.graph import FlowStep

STEPS = [
    FlowStep("", "export", 1.84),
    FlowStep("int8", "convert", 2.5, 24_700_000, 0.99023),
    FlowStep("int8", "lower to cpu", 0.4, 24_200_000, 0.99021, 0.704),
]
RECIPE = "int8:channel0:fp32 x uint8:tensor:fp32:asym"
MISSING = "it is not there: pip install 'blockscale[executorch]'"
FILES = [
    ExportFile("onnx", "onnxruntime", RECIPE, 6, 5.5, 24_131_164, 0.99015, 0.108),
    ExportFile(
        "compressed_tensors", "transformers", "int4:group32:fp32", 6, 0.9, 154_545_483, 0.9453, 10.6
    ),
    ExportFile("executorch", "ExecuTorch", missing=MISSING),
]
ROW = FormatRow("float32", 90_900_000, 32.0, float("inf"), 1.0, 1.0, 1.0, 0.0, 0.25)


class Invented:
    """Measures nothing."""

    float_row = ROW
    model = tokens = None

    def measure(self, name, recipe):
        assert RECIPES[name] is recipe
        return FormatRow(name, 12_200_000, 4.25, 18.72, 0.96134, 0.94731, 0.94881, 0.5, 1.5)


@pytest.fixture(autouse=True)
def _invented(monkeypatch):
    monkeypatch.setattr(demo, "Demo", Invented)
    monkeypatch.setattr(demo, "steps", lambda *args: asked.append(args[2:]) or iter(STEPS))
    monkeypatch.setattr(demo, "files", lambda *args: asked.append(args[2:]) or iter(FILES))
    asked.clear()


asked = []  # names of programs and the graphs that they leave, names of targets and those graphs


@pytest.mark.parametrize("everything", [False, True])
def test_what_takes_long_is_shown_on_demand(monkeypatch, everything):
    monkeypatch.setenv("COLUMNS", "160")
    text = CliRunner().invoke(app, ["demo", *["--all"] * everything]).stdout
    (programs, left), (targets, used) = asked
    assert left is used
    assert programs == ["int8", *["mxfp8"] * everything]
    assert ("executorch" in targets) == everything and {"program", "onnx", "c"} < set(targets)
    assert ("blockscale demo --all shows them" in " ".join(text.split())) == (not everything)


def read(line: str) -> tuple[str, list[str]] | None:
    """A line of the table -> (name, cells); None for headers and the rest of a long name."""
    name, *cells = re.split(r"\s{2,}", line.strip())
    full = len(cells) == len(demo.COLUMNS) - 1 and name != "format"
    return (name, cells) if full else None


def rendered(width: int) -> list[str]:
    """Widest values in every column."""
    rows = [
        FormatRow(name, 190_900_000, 32.0, 143.1, 1.0, 1.0, 1.0, 12.5, 10.25) for name in RECIPES
    ]
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(demo._table([ROW, *rows]))
    return console.export_text().splitlines()


def test_a_terminal_of_80_columns_breaks_no_word():
    lines = rendered(80)
    text = "\n".join(lines)
    assert "…" not in text
    assert max(map(len, lines)) <= 80
    words = text.split()
    for name in ("float32", *RECIPES):
        assert set(name.split()) <= set(words)
    header = [word for column in demo.COLUMNS for word in column.split()]
    assert all(word in words for word in header)
    assert len(lines) <= len(RECIPES) + 10  # names over three lines at most, and most on one
    assert len([line for line in lines if line.strip().startswith("mxfp4, tosa rule")]) == 1


def test_a_wider_one_has_a_line_for_each_row():
    lines = rendered(100)
    assert all(any(line.startswith(f"{name}  ") for line in lines) for name in RECIPES)


def test_the_table(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 0, result.output
    cells = dict(row for line in result.stdout.splitlines() if (row := read(line)))
    assert cells.keys() == {"float32", *RECIPES}
    assert cells["float32"][:3] == ["90.9", "32.00", "inf"]
    assert cells["mxfp4"] == [
        "12.2", "4.25", "18.7", "0.9613", "0.9473", "0.9488", "0.5", "1.50",
    ]  # fmt: skip
    assert "layers ran on" in " ".join(result.stdout.split())


def test_json():
    result = CliRunner().invoke(app, ["demo", "--json"])
    told = json.loads(result.stdout)
    assert [row["name"] for row in told["rows"]] == ["float32", *RECIPES]
    assert told["rows"][1]["bits_per_weight"] == 4.25
    assert told["files"][0]["file_bytes"] == 24_131_164 and told["files"][0]["missing"] is None
    assert told["files"][2]["missing"] == MISSING and told["files"][2]["cosine"] is None
    assert told["steps"][0]["cosine"] is None and told["steps"][2]["to_modules"] == 0.704


def test_the_steps_of_a_program(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = CliRunner().invoke(app, ["demo"]).stdout
    lines = [line.split() for line in text.splitlines()]
    assert ["int8", "convert", "2.5", "24.7", "0.9902"] in lines
    assert ["int8", "lower", "to", "cpu", "0.4", "24.2", "0.9902", "0.70"] in lines
    assert ["export", "1.8"] in lines


def test_the_files_of_each_target(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = CliRunner().invoke(app, ["demo"]).stdout
    lines = [line.split() for line in text.splitlines()]
    assert ["onnx,", "int8_channel", "x", "6", "5.5", "24.1", "0.9901", "0.11"] in lines
    assert ["onnxruntime", "uint8"] in lines
    row = ["compressed_tensors,", "int4:group32:fp32", "6", "0.9", "154.5", "0.9453", "10.60"]
    assert row in lines
    assert ["transformers"] in lines
    assert f"executorch: {MISSING}" in text.splitlines()  # brackets are no markup
    assert max(map(len, text.splitlines())) <= 80 and "…" not in text


def test_where_layers_ran(monkeypatch):
    monkeypatch.setattr(demo, "unavailable", lambda backend: None)
    assert demo._layers_ran_on() == "layers ran on the native CPU kernels"
    monkeypatch.setattr(demo, "unavailable", lambda backend: "it was not built")
    assert demo._layers_ran_on().endswith("which is exact and not fast: it was not built")
