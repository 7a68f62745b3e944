# SPDX-License-Identifier: BSD-3-Clause
"""Names as from_pretrained finds them; what a model may leave out, and what it makes itself."""

import torch
import transformers
from torch import nn

from blockscale.files.renaming_moves import left_to_model, moves_of, of_transformers
from tests.support.renaming_hub import build

HUB = "model.layers.0.block_sparse_moe"


def shapes(model):
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def test_of_transformers():
    class Own(transformers.LlamaForCausalLM):
        pass

    with torch.device("meta"):
        assert of_transformers(Own(build("llama").config))
    assert not of_transformers(nn.Sequential(nn.Linear(2, 2)))


def test_experts_are_gathered_in_the_order_of_their_numbers():
    """Ten and more: as numbers, not as words."""
    config = build("mixtral").config
    config.num_local_experts = 12
    with torch.device("meta"):
        model = transformers.MixtralForCausalLM(config)
    names = {f"{HUB}.experts.{i}.w2.weight": (32, 48) for i in reversed(range(12))}
    (move,) = moves_of(model, names).moves
    assert move.first == "model.layers.0.mlp.experts.down_proj"
    assert move.names == [f"{HUB}.experts.{i}.w2.weight" for i in range(12)]


def test_names_that_stay_are_moved_to_themselves():
    model = build("llama")
    moves = moves_of(model, shapes(model))
    assert {move.first: move.names for move in moves.moves} == {n: [n] for n in shapes(model)}
    assert (moves.unexpected_names, moves.ignorable) == ((), {})


def test_prefixes_of_base_models():
    model = build("llama")
    bare = moves_of(model, shapes(model.model))  # a directory of LlamaModel
    assert {move.first for move in bare.moves} == set(shapes(model)) - {"lm_head.weight"}
    base = moves_of(model.model, shapes(model))
    assert {move.first for move in base.moves} == set(shapes(model.model))
    assert list(base.ignorable) == ["lm_head.weight"]


def test_what_the_model_has_not():
    model = build("llama")
    moves = moves_of(model, shapes(model) | {"model.extra.weight": (2, 2)})
    assert moves.unexpected_names == ("model.extra.weight",)
    old = moves_of(model.model, {"layers.0.self_attn.rotary_emb.inv_freq": (8,)})
    assert not old.moves
    deepseek = build("deepseek_v3")
    extra = {"model.layers.61.mlp.up_proj.weight": (2, 2)}  # its prediction of several tokens
    assert "its class does not load" in moves_of(deepseek, extra).ignorable[next(iter(extra))]


def test_tables_that_a_model_makes_by_itself():
    config = transformers.MarianConfig(
        vocab_size=64, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, pad_token_id=1,
        max_position_embeddings=16, decoder_start_token_id=1,
    )  # fmt: skip
    model = transformers.MarianMTModel(config)
    assert "model.encoder.embed_positions.weight" in left_to_model(model)
    assert not left_to_model(model.to("meta"))  # there is nothing to leave
    assert not left_to_model(nn.Linear(2, 2))
