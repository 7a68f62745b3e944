# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale quantize` with presets: on a text, and without one."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import blockscale as bs
from blockscale.cli.app import app
from blockscale.cli.model_directory import read_model
from blockscale.layers.guards import is_first, is_launched
from tests.support.cli_model_directory import tiny, tokenizer

TEXT = "the a on for in the the for a in on on the a " * 40
SHORT = ("--tokens", "16", "--sequences", "4")


def run(command, *args):
    return CliRunner().invoke(app, [command, *map(str, args)])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tokenizer(tiny(tmp_path_factory.mktemp("models") / "tiny", tie_word_embeddings=False))


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "text.txt"


@pytest.mark.slow
def test_a_preset_is_calibrated_on_a_text(model, text, tmp_path):
    out = tmp_path / "out"
    result = run("quantize", model, out, "-r", "w4a4-nvfp4", "--calibrate", text, *SHORT)
    assert result.exit_code == 0, result.output
    assert "weight by gptq" in result.stdout
    assert "did not happen" not in result.stdout
    recipe = json.loads((out / "config.json").read_text())["quantization_config"]["recipe"]
    assert bs.Recipe.from_dict(recipe) == bs.preset("w4a4-nvfp4")
    ledger = json.loads((out / "blockscale_ledger.json").read_text())
    assert bs.Recipe.from_dict(ledger["recipe"]) == bs.preset("w4a4-nvfp4")
    told = ledger["calibrated_with"]
    assert (told["text"], told["sequences"], told["length"]) == ("text.txt", 4, 16)
    assert (out / "tokenizer.json").is_file()
    assert run("verify", out).exit_code == 0

    read, ours = read_model(model)
    assert not ours
    rows = [{"input_ids": x[None], "attention_mask": torch.ones(1, 16)} for x in rows_of(model)]
    bs.calibrate(read, rows, "w4a4-nvfp4", progress=False, seed=0)
    again, ours = read_model(out)
    assert ours
    with torch.no_grad():
        assert torch.equal(read(**rows[0]).logits, again(**rows[0]).logits)


def rows_of(model):
    from transformers import AutoTokenizer

    ids = AutoTokenizer.from_pretrained(model)(TEXT, add_special_tokens=False)["input_ids"]
    return torch.tensor(ids[:64]).view(4, 16)


def test_without_a_text_it_is_rounded_and_says_so(model, tmp_path):
    result = run("quantize", model, tmp_path / "out", "--recipe", "w8a8")
    assert result.exit_code == 0, result.output
    notes = [line for line in result.stdout.splitlines() if line.startswith("note: ")]
    assert len(notes) == 1
    assert "preset w8a8 asks for a calibration (transform smoothquant)" in notes[0]
    assert "`blockscale quantize --calibrate TEXT`" in notes[0]
    ledger = json.loads((tmp_path / "out/blockscale_ledger.json").read_text())
    assert ledger["notes"] == [notes[0].removeprefix("note: ")]
    recipe = bs.Recipe.from_dict(ledger["recipe"])
    assert (recipe.preset, recipe.calibration) == ("w8a8", None)
    assert run("verify", tmp_path / "out", "--reproduce", model).exit_code == 0
    strict = run("quantize", model, tmp_path / "strict", "--recipe", "w8a8", "--strict")
    assert strict.exit_code == 1
    assert "strict: preset w8a8 asks for a calibration" in strict.stderr
    assert not (tmp_path / "strict").exists()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--dry-run",), "--dry-run shows what is decided without data: leave out --calibrate"),
        (("--tokens", "64", "--sequences", "9999", "--skip", "*"), "the recipe quantizes nothing"),
    ],
)
def test_what_cannot_be(model, text, tmp_path, more, words):
    result = run("quantize", model, tmp_path / "out", "-r", "w8a8", "--calibrate", text, *more)
    assert result.exit_code == 1
    assert words in result.stderr
    assert not (tmp_path / "out").exists()


def test_errors_come_before_the_work(model, text, tmp_path):
    (tmp_path / "short.txt").write_text("the")
    out = tmp_path / "out"
    short = run("quantize", model, out, "-r", "w8a8", "--calibrate", tmp_path / "short.txt")
    assert short.exit_code == 1
    assert "short.txt has 1 tokens: expected at least 64" in short.stderr
    out.mkdir()
    (out / "mine").touch()
    taken = run("quantize", model, out, "-r", "w8a8", "--calibrate", text)
    assert taken.exit_code == 1
    assert "exists: choose another output" in taken.stderr
    assert [file.name for file in out.iterdir()] == ["mine"]


def test_what_was_calibrated_is_not_made_again(model, text, tmp_path):
    out = tmp_path / "out"
    run("quantize", model, out, "-r", "w8a8", "--calibrate", text, *SHORT, "--quiet")
    result = run("verify", out, "--reproduce", model)
    assert result.exit_code == 1
    assert "was calibrated (transform smoothquant), which its recipe and the float" in result.stderr
    again = run("quantize", out, tmp_path / "again", "-r", "w8a8", "--calibrate", text)
    assert again.exit_code == 1
    assert "is quantized already: name the float model's directory" in again.stderr


def test_a_directory_without_a_tokenizer(text, tmp_path):
    """The command has no --tokenizer, which `eval` names."""
    bare = tiny(tmp_path / "bare")
    result = run("quantize", bare, tmp_path / "out", "-r", "w4a16", "--calibrate", text, *SHORT)
    assert result.exit_code != 0 and not (tmp_path / "out").exists()
    said = " ".join(result.output.split())
    assert "has no tokenizer: put the model's there (tokenizer.json)" in said


@pytest.mark.slow
def test_a_format_alone_is_calibrated_as_the_closest_preset(model, text, tmp_path):
    out = tmp_path / "out"
    result = run("quantize", model, out, "-r", "int4:group16:fp16", "--calibrate", text, *SHORT)
    assert result.exit_code == 0, result.output
    assert "weight by gptq" in result.stdout
    recipe = json.loads((out / "blockscale_ledger.json").read_text())["recipe"]
    assert recipe["calibration"] == {"transform": "awq", "weight": "gptq"}


def test_a_weight_algorithm_of_ones_own(model, text, tmp_path):
    out = tmp_path / "out"
    result = run(
        "quantize", model, out, "-r", "int4", "--calibrate", text, *SHORT, "--weight", "mse"
    )
    assert result.exit_code == 0, result.output
    assert "weight by mse" in result.stdout
    result = run("quantize", model, tmp_path / "other", "-r", "int4", "--weight", "mse")
    assert result.exit_code == 1
    assert "--weight is chosen from data: name a text by --calibrate" in result.output


def test_who_prints_and_writes(monkeypatch):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "here"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    assert not is_launched() and is_first()
    monkeypatch.setenv("MASTER_PORT", "1")
    assert is_launched() and not is_first()
    monkeypatch.setenv("RANK", "0")
    assert is_launched() and is_first()
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert not is_launched()


def by_torchrun(count, *args):
    command = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    command += ("--nproc-per-node", str(count), "-m", "blockscale", "quantize", *map(str, args))
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_two_processes_write_what_one_writes(model, text, tmp_path):
    """All files, to the byte, but for the order of the metadata in the head of the weights' file,
    which safetensors leaves to chance; the first process alone prints."""
    options = ("-r", "w4a4-nvfp4", "--calibrate", text, "--tokens", "16", "--sequences", "5")
    assert run("quantize", model, tmp_path / "one", *options).exit_code == 0
    result = by_torchrun(2, model, tmp_path / "two", *options)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("wrote ") == 1
    one, two = (sorted((tmp_path / name).iterdir()) for name in ("one", "two"))
    assert [f.name for f in one] == [f.name for f in two]
    for a, b in zip(one, two, strict=True):
        if a.name == "blockscale_ledger.json":
            ledgers = [json.loads(file.read_text()) for file in (a, b)]
            for ledger in ledgers:
                del ledger["files"]["model.safetensors"]["sha256"]
            assert ledgers[0] == ledgers[1]
        elif a.suffix == ".safetensors":
            tensors = [load_file(file) for file in (a, b)]
            assert tensors[0].keys() == tensors[1].keys()
            for name, tensor in tensors[0].items():
                same = tensors[1][name].contiguous().flatten().view(torch.uint8)
                assert torch.equal(tensor.contiguous().flatten().view(torch.uint8), same), name
        else:
            assert a.read_bytes() == b.read_bytes(), a.name
    again = by_torchrun(2, model, tmp_path / "two", *options)
    assert again.returncode and "process 0 of 2 raised" in again.stderr
