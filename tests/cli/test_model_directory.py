# SPDX-License-Identifier: BSD-3-Clause
"""Models of transformers from their directories, and what they are called with."""

import pytest
import torch

from blockscale.cli.model_directory import (
    SENTENCES,
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
