# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale quantize` as a user meets it: output, errors, exit codes, Ctrl-C."""

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from blockscale.cli.app import app
from tests.support import fresh
from tests.support.file_models import contents, tiny_tensors, write_model
from tests.support.onnx_graphs import several

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}


def run(*args):
    return CliRunner().invoke(app, ["quantize", *map(str, args)])


def fails(*args):
    """The message of a run that must fail: one line on stderr, nothing on stdout."""
    result = run(*args)
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("blockscale: ")
    return result.stderr


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path / "model", tiny_tensors(), 2)


def test_the_ledger_as_a_table(model, tmp_path):
    (model / "pytorch_model.bin").write_text("")
    result = run(model, tmp_path / "out", "--recipe", "mxfp4", "--skip", "head", "--skip", "no.*")
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0] == "tensor count kind before after format, or why not"
    assert "quantized layers.*.proj.weight 2 matrix 7.9 kB 1.5 kB mxfp4" in lines
    assert "kept head.weight 1 matrix 4.0 kB 4.0 kB pattern 'head' of the recipe" in lines
    assert "note: pattern 'no.*' of the recipe matches nothing" in lines
    assert any(line.startswith("6 quantized, 9 kept, 2 skipped; ") for line in lines)
    assert "left out: pytorch_model.bin: the float weights in another format" in lines
    assert "copied: tokenizer.json" in lines
    assert lines[-1].startswith(f"wrote {tmp_path / 'out'} in ")
    assert (tmp_path / "out" / "config.json").exists()


def test_the_ledger_as_json(model, tmp_path):
    result = run(model, tmp_path / "out", "-r", "mxfp4", "--json")
    data = json.loads(result.stdout)
    written = json.loads((tmp_path / "out" / "blockscale_ledger.json").read_text())
    assert data["entries"] == written["entries"]
    assert data["bytes_per_second"] > 0


def test_quiet(model, tmp_path):
    result = run(model, tmp_path / "out", "-r", "mxfp4", "-q", "--skip", "no.*")
    assert result.exit_code == 0
    assert result.stdout == ""
    reason = "only float32, bfloat16 and float16 can be quantized"
    assert result.stderr.splitlines() == [
        f"skipped: double.weight: float64; {reason}",
        f"skipped: eight.weight: float8_e4m3fn; {reason}",
        "note: pattern 'no.*' of the recipe matches nothing",
    ]


def test_dry_run_writes_nothing(model, tmp_path):
    before = contents(tmp_path)
    result = run(model, tmp_path / "out", "-r", "mxfp4", "--dry-run")
    assert "quantized  embed.weight" in result.stdout
    assert result.stdout.splitlines()[-1].endswith("nothing is written")
    assert contents(tmp_path) == before
    data = json.loads(run(model, tmp_path / "out", "-r", "mxfp4", "--dry-run", "--json").stdout)
    run(model, tmp_path / "out", "-r", "mxfp4")
    assert data["bytes_written"] >= sum(len(each) for each in contents(tmp_path / "out").values())
    assert "out exists" in fails(model, tmp_path / "out", "-r", "mxfp4", "--dry-run")


def test_recipes(model, tmp_path):
    text = '{"weight": "mxfp4", "rules": {"embed": "int8"}, "skip": ["head"]}'
    (tmp_path / "recipe.json").write_text(text)
    found = []
    for index, recipe in enumerate([text, tmp_path / "recipe.json"]):
        out = tmp_path / str(index)
        assert run(model, out, "-r", recipe, "--skip", "conv").exit_code == 0
        data = json.loads((out / "blockscale_ledger.json").read_text())
        assert data["recipe"]["skip"] == ["head", "conv"]
        found.append({entry["name"]: entry["weight"] for entry in data["entries"]})
    assert found[0] == found[1]
    assert (found[0]["embed.weight"], found[0]["head.weight"]) == ("int8:tensor:fp32", "")


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("mxfp5", "unknown format 'mxfp5': did you mean"),
        ("MXFP4", "unknown format 'MXFP4': did you mean mxfp4? named formats"),
        ('{"weight": "int 8"}', "unknown format 'int 8': did you mean int8? named formats"),
        ("int8:Token:fp32", "'int8:Token:fp32': did you mean int8:token:fp32? unknown block"),
        ("int8:channel0", "'int8:channel0': a format is spelled"),
        ("none.json", "the recipe file 'none.json'"),
        ("{", "the recipe is not JSON"),
        ('{"weights": "int8"}', "unknown recipe key 'weights'; choose from"),
        ('{"weight": 8}', "cannot be used: expected a Format or its spelling, found an int"),
        ('{"skip": "head"}', "cannot be used: skip must be a list of patterns"),
        ('{"rules": ["a"]}', "cannot be used"),
        ('{"weight": null}', "the recipe quantizes nothing"),
    ],
)
def test_bad_recipes(recipe, message, model, tmp_path):
    assert message in fails(model, tmp_path / "out", "-r", recipe)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


@pytest.mark.slow
def test_errors_are_messages(model, tmp_path):
    out = tmp_path / "out"
    assert "nowhere does not exist" in fails(tmp_path / "nowhere", out, "-r", "int8")
    assert "double.weight (matrix): float64; only float32" in fails(
        model, out, "-r", "int8", "--strict"
    )
    assert "choose an output elsewhere" in fails(model, model / "out", "-r", "int8")
    assert run(model, out, "-r", "int8").exit_code == 0
    assert "replace it with --force" in fails(model, out, "-r", "int8")
    assert run(model, out, "-r", "int8", "--force").exit_code == 0
    (tmp_path / "file").write_text("")
    message = fails(model, tmp_path / "file" / "out", "-r", "int8")
    assert message.startswith(f"blockscale: {tmp_path / 'file'} is not a directory")
    assert message.endswith(": choose another output\n")


def test_usage_errors(model):
    assert run(model).exit_code == 2
    assert "Missing option '--recipe'" in run(model, "out").stderr


# The command line in a process of its own, which stands still with its second tensor in its hands.
SLOW = """
import time
from blockscale.cli import main
from blockscale.files.directory import journal

journal.SECONDS = 0.0
add, added = journal.Journal.add, []

def one(*arguments):
    if added:
        time.sleep(600)
    add(*arguments)
    added.append(arguments)

journal.Journal.add = one
main()
"""


@pytest.fixture
def long_model(tmp_path):
    tensors = {f"layers.{i}.weight": torch.randn(256, 64) for i in range(12)}
    return write_model(tmp_path / "model", tensors)


def begin(model, out):
    """A process that has finished a tensor and is at work on another."""
    how = {"env": ENVIRONMENT, "cwd": ROOT, "ready": fresh.WITH_OURS}
    process = fresh.begin(SLOW, "quantize", model, out, "-r", "mxfp4", **how)
    while not any(path.stat().st_size for path in out.parent.glob(".out.blockscale-*/journal")):
        os.kill(process.pid(), 0)  # it is there
        time.sleep(0.01)
    return process


@pytest.mark.slow
def test_a_second_process_is_refused_and_ctrl_c_keeps_what_is_finished(long_model, tmp_path):
    out = tmp_path / "out"
    process = begin(long_model, out)
    try:
        message = fails(long_model, out, "-r", "mxfp4")
        assert "another process is writing" in message
        os.kill(process.pid(), signal.SIGINT)
    except BaseException:
        process.stop()
        raise
    done = process.end()
    assert done.returncode == 130, done.stderr
    assert done.stdout == ""
    [work] = tmp_path.glob(".out.blockscale-*")
    assert done.stderr.splitlines() == [
        f"finished parts are kept in {work}: run the same command again to continue",
        "blockscale: interrupted",
    ]
    assert not out.exists()
    result = run(long_model, out, "-r", "mxfp4")
    assert result.exit_code == 0
    assert "were finished by an earlier run" in result.stderr
    run(long_model, tmp_path / "whole", "-r", "mxfp4")
    assert contents(out) == contents(tmp_path / "whole")


def test_a_file_of_onnx(tmp_path):
    source, out = several(tmp_path / "float.onnx"), tmp_path / "q.onnx"
    result = run(source, out, "-r", "int8_channel", "--skip", "head", "--dry-run")
    assert result.exit_code == 0, result.output
    assert "pattern 'head' of the recipe" in result.stdout
    assert not out.exists()
    recipe = '{"weight": "int8_channel", "input": "uint8:tensor:fp32:asym"}'
    np.savez(tmp_path / "calls.npz", ids=np.arange(36).reshape(2, 3, 6) % 20)
    result = run(source, out, "-r", recipe, "--calibrate", tmp_path / "calls.npz", "--json")
    assert result.exit_code == 0, result.output
    entries = {entry["name"]: entry for entry in json.loads(result.stdout)["entries"]}
    assert entries["conv"]["details"] == "static input by mse"
    assert "exists: remove it" in fails(source, out, "-r", "mxfp4")
    assert run(source, out, "-r", "mxfp4", "--force", "--quiet").stdout == ""
    search = ("-r", "int4:group8:fp32", "--weight", "search", "--calibrate", tmp_path / "calls.npz")
    result = run(source, out, *search, "--force", "--json")
    assert result.exit_code == 0, result.output
    entries = {entry["name"]: entry for entry in json.loads(result.stdout)["entries"]}
    assert entries["block.fc"]["details"] == "weight by search"
    before = out.read_bytes()
    message = fails(source, out, "-r", "mxfp4", "--weight", "gptq", "--force")
    assert "'gptq' is chosen from calls of the model, and there are none" in message
    assert out.read_bytes() == before
