"""Models of transformers from their directories, and what they are called with."""

import pytest
import torch

from blockscale.cli.model_directory import (
    SENTENCES,
    program,
    read_model,
    tokenized,
    without_place,
)

pytestmark = pytest.mark.filterwarnings("ignore")


def tiny(path, **settings):
    """A causal model of two small layers, as transformers writes it, without a tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=64, max_position_embeddings=64, **sizes, **heads, **settings)
    LlamaForCausalLM(config).save_pretrained(path)
    return path


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
    found = tokenized(folder, SENTENCES, 8)
    assert found["input_ids"].shape == (8, 8) and int(found["input_ids"].max()) < 64


def test_programs_take_other_sizes(folder):
    model, _ = read_model(folder)
    example = tokenized(folder, SENTENCES, 8)
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
