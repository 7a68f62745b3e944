# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale convert`: text, JSON and errors."""

import json
from dataclasses import replace
from pathlib import Path

from typer.testing import CliRunner

from blockscale.cli.app import app
from blockscale.cli.commands.convert import conversion_table
from blockscale.export.conversion.proof import Conversion, Converted
from tests.support.conversion_models import tensors, write

ASYM = "uint4:group128:fp16:asym"


def run(*args: object):
    return CliRunner().invoke(app, ["convert", *map(str, args)])


def test_convert(tmp_path: Path) -> None:
    source, target = write(tmp_path / "source", tensors(ASYM)), tmp_path / "there"
    told = run(source, target, "--to", "awq")
    assert told.exit_code == 0, told.output
    assert "exact" in told.stdout and "7 exact, 5 copied" in told.stdout
    assert "lossless" in told.stdout and "0 differ" in told.stdout
    assert "note: readers of this layout compute (code - zero) * scale in fp16" in told.stdout
    again = run(source, target, "--to", "awq")
    assert again.exit_code == 1 and "replace it with --force" in again.stderr
    quiet = run(source, target, "--to", "awq", "--force", "--quiet")
    assert quiet.exit_code == 0 and quiet.stdout == ""


def test_json_and_dry_run(tmp_path: Path) -> None:
    source, target = write(tmp_path / "source", tensors(ASYM)), tmp_path / "m.gguf"
    told = run(source, target, "--to", "gguf", "--json", "--dry-run")
    data = json.loads(told.stdout)
    assert data["lossless"] and not data["written"] and not target.exists()
    told = run(source, target, "--to", "gguf", "--json")
    data = json.loads(told.stdout)
    assert data["written"] and data["to"] == "gguf" and data["bytes_after"] > 0
    assert {t["compared"] for t in data["tensors"]} == {"codes", "values"}  # values of floats
    assert {t["written"] for t in data["tensors"] if t["how"] == "exact"} == {
        "int5:group32:fp16:full"
    }


def test_errors_of_quantizing_again(tmp_path: Path) -> None:
    source = write(tmp_path / "source", tensors("nf4:group64:fp32"))
    told = run(source, tmp_path / "m.gguf", "--to", "gguf")
    assert told.exit_code == 1 and "cannot be written as gguf" in told.stderr
    told = run(source, tmp_path / "m.gguf", "--to", "gguf", "--requantize", "int8:group32:fp16")
    assert told.exit_code == 1 and "ggml has no such type" in told.stderr
    told = run(
        source, tmp_path / "m.gguf", "--to", "gguf", "--requantize", "int8:group32:fp16:full"
    )
    assert told.exit_code == 0, told.output
    assert "not lossless: 5 copied, 7 requantized" in told.stdout
    assert "relative error" in told.stdout and " dB" in told.stdout


def test_shard_size(tmp_path: Path) -> None:
    source = write(tmp_path / "source", tensors(ASYM))
    told = run(source, tmp_path / "m", "--to", "gguf", "--shard-size", "0.2MB")
    assert told.exit_code == 0, told.output
    assert len(list((tmp_path / "m").glob("m-0000?-of-0000?.gguf"))) > 1
    told = run(source, tmp_path / "n", "--to", "gguf", "--shard-size", "many")
    assert told.exit_code != 0 and "--shard-size 'many' is not a size" in told.stderr
    assert not (tmp_path / "n").exists()


ONE = Converted("l.0.w", "l.0.w", (2, 3), "exact", "awq", "uint4", "Q5_0", "values", 6, 7)


def test_lossless() -> None:
    done = Conversion("x", "y", "gguf", [ONE, replace(ONE, name="l.1.w")], {"z": "why"},
                      ("tokenizer.json",), ("a note",), "it rounds", 14, 20)  # fmt: skip
    lines = conversion_table(done).splitlines()
    assert lines[1].split() == ["exact", "l.*.w", "2", "awq", "uint4", "->", "Q5_0"]
    assert "left out: z: why" in lines and "note: a note" in lines
    assert "copied: tokenizer.json" in lines and lines[-1] == "note: it rounds"
    assert any(
        line.startswith("lossless: 2 exact;") and "12 values, 0 differ" in line for line in lines
    )
    assert "lossless" not in conversion_table(done, with_proof=False)


def test_errors() -> None:
    again = replace(ONE, how="requantized", relative=0.0123, sqnr=38.2, notes=("because",))
    text = conversion_table(Conversion("x", "y", "gguf", [ONE, again]))
    assert "1.230%" in text and "38.20 dB" in text and "because" in text
    assert "not lossless: 1 exact, 1 requantized" in text
