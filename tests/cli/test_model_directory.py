# SPDX-License-Identifier: BSD-3-Clause
"""Models of transformers from their directories, and what they are called with."""

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.cli.model_directory import (
    SENTENCES,
    ExportSizes,
    export_options,
    fit_sizes,
    fitting,
    program,
    read_model,
    tokenize,
    without_place,
)
from tests.support.cli_model_directory import tiny, tokenizer

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny(tmp_path_factory.mktemp("models") / "tiny", tie_word_embeddings=True)


def test_a_float_model(folder):
    model, quantized = read_model(folder)
    assert not quantized and not model.training
    assert type(model).__name__ == "LlamaForCausalLM" and model.config.use_cache is False


def test_a_quantized_directory(folder, tmp_path):
    from blockscale.files.directory.quantize_directory import quantize_directory

    quantize_directory(folder, tmp_path / "out", "int8_channel")
    model, quantized = read_model(tmp_path / "out")
    assert quantized
    assert type(model.model.layers[0].mlp.up_proj).__name__ == "QLinear"


def test_what_is_no_model(tmp_path):
    with pytest.raises(ValueError, match=r"has no config\.json"):
        read_model(tmp_path)


def test_tokens_without_a_tokenizer(folder):
    found = tokenize(folder, SENTENCES, 8)
    assert found["input_ids"].shape == (8, 8) and int(found["input_ids"].max()) < 64


@pytest.mark.slow
def test_programs_take_other_sizes(folder):
    model, _ = read_model(folder)
    example = tokenize(folder, SENTENCES, 8)
    made = program(model, example, batch=16, tokens=32).module()
    ids = torch.arange(30).reshape(3, 10)
    with torch.no_grad():
        theirs = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        ours = made(input_ids=ids, attention_mask=torch.ones_like(ids))
    torch.testing.assert_close(ours, theirs)


def test_layers_that_compressed_tensors_leaves(folder):
    model, _ = read_model(folder)
    assert without_place(model) == ["model.embed_tokens", "lm_head"]
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
    assert without_place(model) == ["model.embed_tokens"]


@pytest.mark.parametrize("named", [True, False])
def test_a_tokenizer_without_a_token_for_padding(tmp_path, named):
    """Rows are padded by the end of a text: the tokenizer's, else config.json's; and masked."""
    folder = tokenizer(tmp_path, **({"eos_token": "</s>"} if named else {}))
    (folder / "config.json").write_text('{"vocab_size": 8, "eos_token_id": [1, 2]}')
    found = tokenize(folder, ["the", "a on for"], 8)
    assert found["input_ids"].tolist() == [[3, 1, 1], [4, 5, 6]]
    assert found["attention_mask"].tolist() == [[1, 0, 0], [1, 1, 1]]
    for told in ("{}", '{"eos_token_id": 99}', '{"text_config": {"eos_token_id": 2}}'):
        (folder / "config.json").write_text(told)
        last = 1 if named else (2 if "text" in told else 0)
        assert tokenize(folder, ["the", "a on"], 8)["input_ids"].tolist() == [[3, last], [4, 5]]


def test_tokens_fit_the_models_positions(folder):
    from transformers import GPT2Config, GPT2Model, RobertaConfig, RobertaModel

    model, _ = read_model(folder)
    assert [fitting(model, n) for n in (128, 64, 9)] == [64, 64, 9]
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 9}
    roberta = RobertaModel(RobertaConfig(max_position_embeddings=18, **sizes))
    assert fitting(roberta, 128) == 16  # two places are not for tokens
    roberta(torch.arange(2, 9).repeat(16)[None, :16])
    gpt2 = GPT2Model(GPT2Config(n_positions=12, n_embd=8, n_layer=1, n_head=1, vocab_size=9))
    assert fitting(gpt2, 128) == 12
    assert fitting(torch.nn.Linear(2, 2), 128) == 128


@pytest.mark.slow
def test_results_by_name(folder):
    model, _ = read_model(folder)
    example = tokenize(folder, SENTENCES, 8)
    found = program(model, example, batch=8, tokens=32, in_dict=True).module()(**example)
    assert list(found) == ["logits"] and found["logits"].shape == (8, 8, 64)


EXAMPLE = {"input_ids": torch.zeros(8, 9, dtype=torch.int64)}


def test_options():
    sizes = ExportSizes(None, 16, "net", 1000)
    given = export_options(bs.export.c, EXAMPLE, sizes, force=True)
    assert given.pop("example")["input_ids"].shape == (1, 16)
    assert given == {"overwrite": True, "name": "net", "max_bytes": 1000}
    for force in (True, False):
        options = export_options(bs.export.program, EXAMPLE, sizes, force)
        assert options == {"overwrite": force}
    assert export_options(bs.export.c, EXAMPLE, ExportSizes(3, 5), force=True)["example"][
        "input_ids"
    ].shape == (3, 5)
    cached = export_options(
        bs.export.executorch, EXAMPLE, ExportSizes(None, 128, cache="32"), force=True
    )
    assert cached == {"overwrite": True, "cache": 32, "tokens": 32}
    assert ExportSizes(None, 16).most == 8 and ExportSizes(2, 16).most == 2
    assert ExportSizes(None, None).longest == 128 and ExportSizes(None, 16).longest == 16


def test_a_cache_of_onnx():
    """Its past is of any length, or all sizes are fixed; sentences are as long as ever."""
    floats = ExportSizes(None, None, cache="float")
    assert export_options(bs.export.onnx, EXAMPLE, floats, force=True) == {
        "overwrite": True, "cache": True, "sizes": None,
    }  # fmt: skip
    fixed = ExportSizes(None, None, cache="int8:token:fp32", past=63)
    sizes = {"batch_size": 1, "sequence_length": 1, "past_sequence_length": 63}
    assert export_options(bs.export.onnx, EXAMPLE, fixed, force=True) == {
        "overwrite": True, "cache": "int8:token:fp32", "sizes": sizes,
    }  # fmt: skip
    assert ExportSizes(2, 4, cache="float", past=8).fixed == {
        "batch_size": 2, "sequence_length": 4, "past_sequence_length": 8,
    }  # fmt: skip
    assert ExportSizes(2, 4, cache="float", past=8).longest == 128
    assert floats.for_genai and not fixed.for_genai
    assert not ExportSizes(None, None, cache="float", past=8).for_genai
    assert not ExportSizes(None, None, cache="int8:token:fp32").for_genai


def test_options_of_another_target():
    ExportSizes(1, 2, "net").check("c")
    ExportSizes(1, 2).check("onnx")
    for odd in (ExportSizes(1, 2, "net"), ExportSizes(1, 2, max_bytes=5)):
        with pytest.raises(ValueError, match="are only for --to c"):
            odd.check("onnx")
    with pytest.raises(ValueError, match="--cache is only for --to executorch and --to onnx"):
        ExportSizes(None, 2, cache="8").check("program")
    for target, cache in (("executorch", "8"), ("onnx", None)):
        with pytest.raises(ValueError, match="--past is only for --to onnx with --cache: it fixes"):
            ExportSizes(None, 2, cache=cache, past=8).check(target)
    ExportSizes(1, 1, cache="float", past=8).check("onnx")
    for target in ("program", "onnx", "c"):
        with pytest.raises(ValueError, match="--tokens must be at least 2, got 1: one token a"):
            ExportSizes(None, 1).check(target)


def test_a_cache_is_a_number_or_a_format():
    ExportSizes(None, 2, cache="8").check("executorch")
    for cache in ("1", "float", "int8:token:fp32", "-3"):
        with pytest.raises(ValueError, match=f"--cache {cache}: an ExecuTorch file keeps a number"):
            ExportSizes(None, 2, cache=cache).check("executorch")
    with pytest.raises(ValueError, match="takes one row: leave --batch 2 out"):
        ExportSizes(2, 2, cache="8").check("executorch")
    for cache in ("float", "int8:token:fp32", "int4:group32:fp16"):
        ExportSizes(None, None, cache=cache).check("onnx")
        ExportSizes(4, 16, cache=cache, past=8).check("onnx")
    with pytest.raises(ValueError, match="--past 2048 beside it is for calls of just that length"):
        ExportSizes(None, None, cache="2048").check("onnx")
    with pytest.raises(ValueError, match="cache='int6:token:fp32': a file holds keys and values"):
        ExportSizes(None, None, cache="int6:token:fp32").check("onnx")
    for odd in (ExportSizes(2, None, cache="float"), ExportSizes(None, 8, cache="float")):
        with pytest.raises(ValueError, match="any number of rows and tokens: leave --batch and"):
            odd.check("onnx")


class Positions(nn.Module):
    """As a model of transformers says how many it has."""

    class config:  # noqa: N801 - an attribute of models
        max_position_embeddings = 64


def test_sizes_fit_the_model(capsys):
    assert fit_sizes(ExportSizes(None, None), Positions()).tokens == 64
    assert "64 tokens a row, for which the model has positions" in capsys.readouterr().err
    assert fit_sizes(ExportSizes(None, 16), Positions()) == ExportSizes(None, 16)
    for sizes in (
        ExportSizes(None, None, cache="float"),
        ExportSizes(1, 4, cache="float", past=60),
    ):
        assert fit_sizes(sizes, Positions()) == sizes
    assert not capsys.readouterr().err
    with pytest.raises(ValueError, match="--past 61 and 4 new tokens need 65 positions, and the"):
        fit_sizes(ExportSizes(1, 4, cache="float", past=61), Positions())
