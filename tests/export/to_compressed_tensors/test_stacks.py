"""Quantized parameters: experts become matrices, all others are named."""

from torch import nn

import blockscale as bs
from blockscale.export.to_compressed_tensors.stacks import matrices
from blockscale.files.renaming.apart import Back
from tests.support.renaming_hub import build


def found(model):
    return matrices(model, Back(model))


def test_experts_have_the_names_of_checkpoints():
    model = build("mixtral")
    bs.quantize_(model, bs.Recipe("int4:group16:fp32", skip=["lm_head", "*embed_tokens"]))
    stacks, refused = found(model)
    names = [
        f"model.layers.0.block_sparse_moe.experts.{i}.{w}"
        for i in range(3)
        for w in ("w1", "w2", "w3")
    ]
    assert sorted(stacks) == names and refused == {}
    assert {tuple(q.shape) for q in stacks.values()} == {(48, 32), (32, 48)}


def test_other_parameters_have_no_place():
    model = nn.ModuleDict({"attention": nn.MultiheadAttention(64, 4), "rnn": nn.LSTM(64, 64)})
    bs.quantize_(model, "int4:group32:fp32")
    stacks, refused = found(model)
    assert stacks == {}
    assert refused["attention.in_proj_weight"] == (
        "it is a parameter of MultiheadAttention, not the weight of an nn.Linear"
    )
    assert set(refused) == {"attention.in_proj_weight", "rnn.weight_ih_l0", "rnn.weight_hh_l0"}
