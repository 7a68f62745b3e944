"""`blockscale export`: a model's directory in, another runtime's file out, with its audit."""

import json

import pytest
import torch
from typer.testing import CliRunner

import blockscale as bs
from blockscale.cli.app import app
from blockscale.cli.model_directory import read_model
from tests.cli.test_model_directory import tiny
from tests.cli.words import words

pytestmark = pytest.mark.filterwarnings("ignore")
IDS = torch.arange(20).reshape(2, 10)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tiny(tmp_path_factory.mktemp("models") / "tiny", tie_word_embeddings=False)
    (folder / "vocab.txt").write_text("a b c")
    return folder


def run(*args):
    return CliRunner().invoke(app, ["export", *map(str, args)])


def test_program(model, tmp_path):
    out = tmp_path / "m.pt2"
    options = ["--to", "program", "-r", "int8_channel", "--skip", "lm_head"]
    result = run(model, out, *options)
    assert result.exit_code == 0, result.stderr
    lines = words(result.stdout)
    assert lines[0] == "tensor count stored bits as computed"
    assert any("int8:channel0:fp32 dequantize of blockscale" in line for line in lines)
    assert any("lm_head" in line and line.startswith("kept") for line in lines)
    assert lines[-1].startswith(f"wrote {out} in ")
    y = torch.export.load(out).module()(input_ids=IDS, attention_mask=torch.ones_like(IDS))
    plain, _ = read_model(model)
    with torch.no_grad():
        theirs = plain(input_ids=IDS).logits
    assert torch.nn.functional.cosine_similarity(y, theirs, -1).min() > 0.99


def test_compressed_tensors(model, tmp_path):
    out = tmp_path / "out"
    result = run(model, out, "--to", "compressed-tensors", "-r", "int8_channel", "--json")
    assert result.exit_code == 0, result.stderr
    found = {entry["name"]: entry for entry in json.loads(result.stdout)["entries"]}
    assert found["model.layers.0.mlp.up_proj"]["status"] == "quantized"
    assert found["model.embed_tokens.weight"]["status"] == "kept"
    assert "left in float, as its readers do: model.embed_tokens" in result.stderr
    assert (out / "vocab.txt").read_text() == "a b c"
    assert [each.name for each in tmp_path.iterdir()] == ["out"]
    again = run(model, out, "--to", "compressed-tensors", "-r", "int4:group32:fp32")
    assert again.exit_code == 1 and "exists: choose another output" in again.stderr
    forced = run(model, out, "--to", "compressed-tensors", "-r", "int4:group32:fp32", "--force")
    assert forced.exit_code == 0, forced.stderr
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    assert config["config_groups"]["group_0"]["weights"]["num_bits"] == 4


@pytest.mark.slow
def test_executorch(model, tmp_path):
    pytest.importorskip("executorch", reason="pip install 'blockscale[executorch]'")
    recipe = json.dumps({"weight": "int8_channel", "input": "int8_token"})
    result = run(model, tmp_path / "m.pte", "--to", "executorch", "-r", recipe)
    assert result.exit_code == 0, result.stderr
    assert "XNNPACK: in integers" in result.stdout


def test_a_quantized_directory_needs_no_recipe(model, tmp_path):
    from blockscale.files.directory.quantize_directory import quantize_directory

    quantize_directory(model, tmp_path / "q", "mxfp4")
    result = run(tmp_path / "q", tmp_path / "m.pt2", "--to", "program")
    assert result.exit_code == 0, result.stderr
    found = bs.export.audit(tmp_path / "m.pt2")
    assert {entry.weight for entry in found.quantized} == {str(bs.parse("mxfp4"))}
    twice = run(tmp_path / "q", tmp_path / "n.pt2", "--to", "program", "-r", "int4")
    assert twice.exit_code == 1 and "are quantized already" in twice.stderr


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--to", "tensorrt"], "no target 'tensorrt'; there are compressed-tensors"),
        (["--to", "program"], "say how to quantize the model: --recipe"),
        (["--to", "program", "--skip", "lm_head"], "--skip goes with --recipe"),
        (["--to", "program", "-r", "int9000"], "int9000"),
        (["--to", "program", "-r", "int8", "--text", "TEXT"], "has 1 sentences: give two or more"),
    ],
)
def test_bad_options(model, tmp_path, options, why):
    (tmp_path / "text").write_text("one line\n")
    options = [str(tmp_path / "text") if each == "TEXT" else each for each in options]
    result = run(model, tmp_path / "m.pt2", *options)
    assert result.exit_code == 1 and why in result.stderr
    assert not (tmp_path / "m.pt2").exists()
