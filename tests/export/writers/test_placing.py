"""Names of tensors that readers ask for, and of those that they never do."""

import pytest

from blockscale.export.writers.placing import is_table, no_layer, no_place
from blockscale.export.writers.writer import writer_of, writers

TABLES = [
    "model.embed_tokens.weight", "token_embd.weight", "wte.weight", "transformer.wpe.weight",
    "embeddings.word_embeddings.weight", "bert.embeddings.position_embeddings.weight",
    "shared.weight", "gpt_neox.embed_in.weight", "emb.weight", "tok_embeddings.weight",
]  # fmt: skip
LAYERS = [
    "model.norm.weight", "gpt_neox.embed_out.weight", "lm_head.weight", "time_emb_proj.weight",
    "encoder.embedding_hidden_mapping_in.weight", "vision.patch_embedding.weight",
    "mlp.shared_expert.up_proj.weight", "time_embedding.linear_1.weight",
]  # fmt: skip
PARAMETERS = ["mlp.experts.down_proj", "self_attn.in_proj_weight", "rnn.weight_ih_l0", "w"]


def test_tables():
    assert [name for name in TABLES if not is_table(name)] == []
    assert [name for name in LAYERS if is_table(name)] == []


@pytest.mark.parametrize("name", list(writers()))
def test_every_writer(name):
    """Ours, GGUF (which has its own names) and gpt-oss (whose experts are parameters) take more."""
    writer = writer_of(name)
    anything = name in ("blockscale", "gguf", "gpt-oss")
    for each in PARAMETERS:
        assert (no_place(writer, each) is None) == anything
    assert not [each for each in LAYERS if no_place(writer, each)]
    tables = {no_place(writer, each) for each in TABLES}
    assert tables == (
        {None} if writer.embeddings else {"its readers have no quantized tables of embeddings"}
    )


def test_reasons():
    assert "the weights of layers alone" in str(no_layer("mlp.experts.down_proj"))
    assert no_layer("mlp.experts.0.down_proj.weight") is None
