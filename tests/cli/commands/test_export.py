# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale export`: a model's directory in, another runtime's file out, with its audit."""

import inspect
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import blockscale as bs
from blockscale.cli.app import app
from blockscale.cli.commands.export import check_recipe, graph_for, reads_sentences
from blockscale.cli.model_directory import ExportSizes, read_model
from blockscale.demo.exports import NO_COMPILER, compiled, compiler
from blockscale.integrations.transformers import QuantizedCache
from blockscale.layers.layer import QLayer
from tests.cli.words import words
from tests.export.to_onnx.decoders import model_of, session
from tests.support.cli_model_directory import tiny, tokenizer

pytestmark = pytest.mark.filterwarnings("ignore")
IDS = torch.arange(20).reshape(2, 10)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tiny(tmp_path_factory.mktemp("models") / "tiny", tie_word_embeddings=False)
    (folder / "vocab.txt").write_text("a b c")
    return folder


def run(*args):
    return CliRunner().invoke(app, ["export", *map(str, args)])


@pytest.mark.slow
def test_program(model, tmp_path):
    out = tmp_path / "m.pt2"
    options = ["--to", "program", "-r", "int8_channel", "--skip", "lm_head"]
    result = run(model, out, *options)
    assert result.exit_code == 0, result.stderr
    lines = words(result.stdout)
    assert lines[0] == "tensor count stored bits as computed"
    assert any("int8_channel dequantize of blockscale" in line for line in lines)
    assert any("lm_head" in line and line.startswith("kept") for line in lines)
    assert lines[-1].startswith(f"wrote {out} in ")
    y = torch.export.load(out).module()(input_ids=IDS, attention_mask=torch.ones_like(IDS))
    plain, _ = read_model(model)
    with torch.no_grad():
        theirs = plain(input_ids=IDS).logits
    assert torch.nn.functional.cosine_similarity(y, theirs, -1).min() > 0.99


def test_a_tokenizer_without_a_token_for_padding(model, tmp_path, monkeypatch):
    """Weights alone need no sentences; scales of inputs do, which are padded."""
    folder = tokenizer(shutil.copytree(model, tmp_path / "words"))
    recipe = json.dumps({"weight": "int8_channel", "input": "int8"})
    result = run(folder, tmp_path / "static", "--to", "compressed-tensors", "-r", recipe)
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "static" / "tokenizer.json").is_file()
    monkeypatch.setattr("blockscale.cli.commands.export.tokenize", None)
    result = run(folder, tmp_path / "out", "--to", "compressed-tensors", "-r", "int4:group32:fp32")
    assert result.exit_code == 0, result.stderr


@pytest.mark.slow
def test_tokens_fit_the_model(tmp_path):
    """Its positions are fewer than --tokens has by default."""
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    config = BertConfig(vocab_size=64, num_attention_heads=2, max_position_embeddings=12, **sizes)
    BertModel(config).save_pretrained(tmp_path / "bert")
    out = tmp_path / "m.pt2"
    result = run(tmp_path / "bert", out, "--to", "program", "-r", "int8_channel")
    assert result.exit_code == 0, result.stderr
    assert "12 tokens a row, for which the model has positions" in result.stderr
    ids = torch.ones(3, 12, dtype=torch.int64)
    y = torch.export.load(out).module()(input_ids=ids, attention_mask=ids)
    assert y.shape == (3, 12, 32)


@pytest.mark.slow
def test_onnx_files_have_the_names_that_programs_look_for(model, tmp_path):
    onnx = pytest.importorskip("onnx")
    result = run(model, tmp_path / "m.onnx", "--to", "onnx", "-r", "int8_channel")
    assert result.exit_code == 0, result.stderr
    graph = onnx.load(tmp_path / "m.onnx").graph
    sizes = {
        value.name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }
    rows = ["batch", "sequence"]
    assert sizes == {"input_ids": rows, "attention_mask": rows, "logits": [*rows, 64]}


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


def test_an_old_output_stays_until_the_new_one_is_complete(model, tmp_path, monkeypatch):
    """Killed, or out of space, at the last step: what was there is there, or is put back."""
    out, options = tmp_path / "out", ["--to", "compressed-tensors", "-r", "int8_channel"]
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    refused = run(model, out, *options, "--force")
    assert refused.exit_code == 1 and "say --force twice" in refused.stderr
    real = Path.rename

    def rename(path, to):
        if path.name == "out" and to == out:
            raise KeyboardInterrupt
        return real(path, to)

    monkeypatch.setattr(Path, "rename", rename)
    assert run(model, out, *options, "--force", "--force").exit_code == 130
    monkeypatch.undo()
    assert not out.exists() and len(list(tmp_path.glob(".out.blockscale-old-*/mine.txt"))) == 1
    again = run(model, out, *options)
    assert again.exit_code == 1 and "is back in its place" in again.stderr
    assert (out / "mine.txt").read_text() == "mine"


def test_places_are_looked_at_first(model, tmp_path, monkeypatch):
    """Before the model is read."""
    monkeypatch.setattr("blockscale.cli.commands.export.read_model", None)
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    directory = ["--to", "compressed-tensors", "-r", "int8_channel"]
    for out, flags, why in (
        (tmp_path / "link", directory, "is a link, to"),
        (tmp_path / ("x" * 250), directory, "is too long"),
        (model / "out", directory, "one holds the other"),
        (tmp_path, ["--to", "program", "-r", "int8", "--force"], "is a directory: name the file"),
        (tmp_path / "a" / "b", ["--to", "program", "-r", "int8"], "is not a directory"),
    ):
        result = run(model, out, *flags)
        assert result.exit_code == 1 and why in result.stderr, (result.stderr, result.exception)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    folder = tmp_path_factory.mktemp("models") / "bert"
    BertModel(BertConfig(vocab_size=64, num_attention_heads=2, **sizes)).save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.skipif(compiler() is None, reason=NO_COMPILER)
def test_c(encoder, tmp_path):
    """The file of 2 rows of 10 tokens gives the float model's states; padding is left out."""
    out, sizes = tmp_path / "m.c", ["--batch", "2", "--tokens", "10"]
    result = run(encoder, out, "--to", "c", *sizes)
    assert result.exit_code == 0, result.stderr
    assert "in integers" in result.stdout and "int8" in result.stdout
    found = bs.export.audit(out)
    names = {entry.name for entry in found.quantized}
    assert "embedding" in names and len(names) == 1 + 6, names  # words, linear layers
    mask = torch.ones_like(IDS)
    mask[1, 6:] = 0
    (y,) = compiled(out)({"input_ids": IDS, "attention_mask": mask})
    plain, _ = read_model(encoder)
    with torch.no_grad():
        theirs = plain(input_ids=IDS, attention_mask=mask).last_hidden_state
    assert torch.nn.functional.cosine_similarity(y, theirs, -1).min() > 0.99
    named = run(encoder, out, "--to", "c", "--tokens", "7", "--force", "--name", "bert")
    assert named.exit_code == 0 and "int bert_run(" in out.read_text()
    assert "in_input_ids[7]: 1 x 7" in out.read_text()  # one row is what it has by default
    small = run(encoder, tmp_path / "n.c", "--to", "c", *sizes, "--max-bytes", "5000")
    assert small.exit_code == 1 and "more than max_bytes=5000" in words(small.stderr)[-1]
    floats = run(encoder, tmp_path / "n.c", "--to", "c", *sizes, "-r", "int8_channel")
    assert floats.exit_code == 1 and "NotIntegerError" not in floats.stderr
    assert not (tmp_path / "n.c").exists()


@pytest.mark.slow
def test_a_model_that_integers_cannot_compute(model, tmp_path):
    """Rotary embeddings are floats that are computed from positions."""
    result = run(model, tmp_path / "m.c", "--to", "c", "--tokens", "10")
    assert result.exit_code == 1 and "rotary_emb" in result.stderr
    assert not (tmp_path / "m.c").exists()


@pytest.mark.slow
def test_executorch(model, tmp_path):
    pytest.importorskip("executorch", reason="pip install 'blockscale[executorch]'")
    recipe = json.dumps({"weight": "int8_channel", "input": "int8_token"})
    result = run(model, tmp_path / "m.pte", "--to", "executorch", "-r", recipe)
    assert result.exit_code == 0, result.stderr
    assert "XNNPACK: in integers" in result.stdout


@pytest.mark.slow
def test_executorch_with_a_cache(model, tmp_path):
    pytest.importorskip("executorch", reason="pip install 'blockscale[executorch]'")
    from executorch.runtime import Runtime

    out, layers = tmp_path / "m.pte", ["-r", "int8_channel", "--cache", "32", "--tokens", "8"]
    result = run(model, out, "--to", "executorch", *layers)
    assert result.exit_code == 0, result.stderr
    plain, _ = read_model(model)
    bs.quantize_(plain, "int8_channel")
    ids = IDS[:1]
    with torch.no_grad():
        expected = plain(input_ids=ids).logits
    method = Runtime.get().load_program(out).load_method("forward")
    pieces = [
        method.execute([ids[:, i:j].contiguous(), torch.arange(i, j)])[0].clone()
        for i, j in ((0, 8), (8, 10))
    ]
    torch.testing.assert_close(torch.cat(pieces, 1), expected, rtol=1e-4, atol=1e-5)


def test_a_model_with_a_cache_is_quantized_as_it_is(model):
    """Its layers, not a graph: bs.export.executorch makes the graph of a call."""
    for recipe, observed in ((bs.Recipe("int8_channel"), False), (bs.Recipe("int8", "int8"), True)):
        read = read_model(model)
        example = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
        sizes = ExportSizes(None, 8, cache="32")
        result = graph_for("executorch", read, recipe, example, "mse", sizes)
        assert result is read[0] and isinstance(result.lm_head, QLayer)
        scales = [name for name in result.state_dict() if name.startswith("lm_head.input")]
        assert bool(scales) == observed
    with pytest.raises(ValueError, match="no recipe: pass one"):
        graph_for("executorch", read_model(model), None, example, "mse", sizes)


def test_a_cache_in_codes_is_a_recipe_enough(model):
    """The weights may stay in float; what has no such cache is refused before it is quantized."""
    sizes = ExportSizes(None, None, cache="int8:token:fp32")
    read, example = read_model(model), {"input_ids": IDS}
    result = graph_for("onnx", read, None, example, "mse", sizes)
    assert result is read[0] and not isinstance(result.lm_head, QLayer)
    recipe = bs.Recipe("int8_channel")
    result = graph_for("onnx", read_model(model), recipe, example, "mse", sizes)
    assert isinstance(result.lm_head, QLayer)
    floats = ExportSizes(None, None, cache="float")
    with pytest.raises(ValueError, match="no recipe: pass one"):
        graph_for("onnx", read, None, example, "mse", floats)
    groups = ExportSizes(None, None, cache="int4:group12:fp32")
    with pytest.raises(ValueError, match="16 features, which are no whole groups of 12"):
        graph_for("onnx", read, recipe, example, "mse", groups)
    assert not isinstance(read[0].lm_head, QLayer)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    """One whose tokens differ."""
    folder = tmp_path_factory.mktemp("models") / "decoder"
    model_of("llama").save_pretrained(folder)
    return folder


NEW = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None}


def chosen(out, ids, count):
    """Greedy tokens of one row after a prompt, in onnxruntime, one token a call. A past of fixed
    length is filled from its right; its rest is masked."""
    file = session(out)
    dtypes = {"tensor(float)": np.float32, "tensor(int8)": np.int8, "tensor(uint8)": np.uint8}
    past = {x.name: x for x in file.get_inputs() if x.name.startswith("past_key_values.")}
    length = next(iter(past.values())).shape[2]
    fixed = length if isinstance(length, int) else 0
    held = {
        name: np.zeros((1, x.shape[1], fixed, x.shape[3]), dtypes[x.type])
        for name, x in past.items()
    }
    texts = ids[0].tolist()
    for i in range(len(texts) + count - 1):
        mask = np.ones((1, i + 1), np.int64)
        if fixed:
            mask = np.pad(mask, ((0, 0), (fixed - i, 0)))
        feed = {"input_ids": [[texts[i]]], "position_ids": [[i]], "attention_mask": mask}
        logits, *present = file.run(None, {k: np.array(x) for k, x in feed.items()} | held)
        held = {k: x[:, :, -fixed:] for k, x in zip(held, present, strict=True)}
        if i + 1 == len(texts):
            texts.append(int(logits[0, -1].argmax()))
    return texts[ids.shape[1] :]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cache", "past", "recipe"),
    [
        ("float", None, "int8_channel"),
        ("float", 40, "int4:group32:fp32"),
        ("int8:token:fp32", 40, "int8_channel"),
        ("int4:group16:fp32", None, None),
    ],
)
def test_onnx_with_a_cache(decoder, tmp_path, cache, past, recipe):
    """onnxruntime chooses torch's tokens, one by one, whatever holds the past."""
    pytest.importorskip("onnxruntime")
    out = tmp_path / "m.onnx"
    layers = [] if recipe is None else ["-r", recipe]
    sizes = [] if past is None else ["--past", str(past)]
    result = run(decoder, out, "--to", "onnx", *layers, "--cache", cache, *sizes)
    assert result.exit_code == 0, result.stderr
    for_genai = cache == "float" and past is None
    beside = {"genai_config.json"} if for_genai else set()
    assert {each.name for each in tmp_path.iterdir()} == {"m.onnx", *beside}
    plain, _ = read_model(decoder)
    if recipe is not None:
        bs.quantize_(plain, recipe)
    own = {}
    if cache != "float":
        own = {"past_key_values": QuantizedCache(plain.config, cache, window=0, chunk=1)}
    ids = torch.randint(1, 96, (1, 5), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for i in range(4 if own else 0):  # token by token from the first, as the file is called
            plain(ids[:, i : i + 1], use_cache=True, **own)
    expected = plain.generate(ids, **own, **NEW, use_cache=True)[0, 5:].tolist()
    assert len({*expected}) > 4
    assert chosen(out, ids, 24) == expected
    if for_genai:
        out.unlink()
        again = run(decoder, out, "--to", "onnx", *layers, "--cache", cache)
        assert again.exit_code == 1 and "genai_config.json exists: choose" in again.stderr


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--cache", "mxfp4"], "a file holds keys and values of int8 or int4"),
        (["--cache", "int9000"], "int9000"),
        (["--cache", "2048"], "--cache 2048: an ONNX file is given its past, of any length"),
        (["--cache", "float", "--batch", "2"], "leave --batch and --tokens out, or fix all sizes"),
        (["--past", "8"], "--past is only for --to onnx with --cache"),
    ],
)
def test_bad_options_of_caches_are_seen_first(model, tmp_path, monkeypatch, options, why):
    """Before the model is read."""
    monkeypatch.setattr("blockscale.cli.commands.export.read_model", None)
    result = run(model, tmp_path / "m.onnx", "--to", "onnx", "-r", "int8_channel", *options)
    assert result.exit_code == 1 and why in result.stderr, (result.stderr, result.exception)
    assert not [*tmp_path.iterdir()]


def test_models_without_a_cache_are_refused(model, encoder, tmp_path):
    """By the class that has none, and by the positions that a model has."""
    layers = ["--to", "onnx", "-r", "int8_channel", "--cache", "float"]
    result = run(encoder, tmp_path / "m.onnx", *layers)
    assert result.exit_code == 1 and "BertModel gives no cache of keys" in result.stderr
    result = run(model, tmp_path / "m.onnx", *layers, "--past", "64")
    assert result.exit_code == 1 and "need 65 positions, and the model has 64" in result.stderr
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
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
        (["--to", "tensorrt"], "unknown target 'tensorrt'; choose from c, compressed-tensors"),
        (["--to", "program"], "no recipe: pass one, such as --recipe"),
        (
            ["--to", "program", "--skip", "lm_head"],
            "--skip needs --recipe: it names layers that the recipe leaves in float",
        ),
        (["--to", "program", "-r", "int9000"], "int9000"),
        (
            ["--to", "program", "-r", "int8", "--name", "m"],
            "--name and --max-bytes are only for --to c",
        ),
        (["--to", "onnx", "-r", "int8", "--max-bytes", "9"], "--max-bytes are only for --to c"),
        (
            ["--to", "program", "-r", "int8", "--text", "TEXT"],
            "has 1 sentences: two or more are needed",
        ),
    ],
)
def test_bad_options(model, tmp_path, options, why):
    (tmp_path / "text").write_text("one line\n")
    options = [str(tmp_path / "text") if each == "TEXT" else each for each in options]
    result = run(model, tmp_path / "m.pt2", *options)
    assert result.exit_code == 1 and why in result.stderr
    assert not (tmp_path / "m.pt2").exists()


def test_static_scales_are_chosen_as_everywhere_else():
    """docs/defaults.md: `mse`, which bs.calibrate takes where nothing is named."""
    from blockscale.cli.commands.export import export

    assert inspect.signature(export).parameters["observer"].default == "mse"


EXAMPLE = {"input_ids": torch.zeros(8, 9, dtype=torch.int64)}


def test_recipes():
    check_recipe(None, False, required=False)
    with pytest.raises(ValueError, match="no recipe: pass one, such as"):
        check_recipe(None, False)
    with pytest.raises(ValueError, match="quantized already"):
        check_recipe(bs.Recipe("int8"), True, required=False)


def test_targets_that_read_sentences():
    """Scales of inputs and outputs may be static, and C needs them all."""
    for recipe in (None, bs.Recipe("int8"), bs.Recipe(rules={"a": "int4"})):
        assert reads_sentences("c", recipe) and not reads_sentences("onnx", recipe)
    for recipe in (
        bs.Recipe("int8", "int8"),
        bs.Recipe(output="int8"),
        bs.Recipe("int8", rules={"a": {"input": "int8"}}),
    ):
        assert reads_sentences("onnx", recipe)


def test_quantized_weights_are_not_enough_for_integers():
    with pytest.raises(ValueError, match="name the float model's directory"):
        graph_for("c", (nn.Linear(2, 2), True), None, EXAMPLE, "min_max", ExportSizes(1, 2))
