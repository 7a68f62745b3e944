# SPDX-License-Identifier: BSD-3-Clause
"""Stacks in the pieces of checkpoints: from codes, to the bit what transformers makes of floats."""

import pytest
import torch
import transformers
from torch import nn
from transformers.core_model_loading import revert_weight_conversion

import blockscale as bs
from blockscale.files.metadata import TensorInfo
from blockscale.files.renaming_apart import Back, conversions_of
from blockscale.layers.store import all_held
from tests.support.renaming_hub import build

FORMATS = ["int4:group16:fp32", "nvfp4", "int8", "int8_channel", "mxfp4", "uint4:group16:fp16:asym"]


def held(weight):
    q = weight.tensor
    parts = {part: each for part, each in q.qparams._asdict().items() if each is not None}
    info = TensorInfo(weight.fmt, tuple(weight.shape), "float32", weight.layout)
    return info, {"codes": q.packed} | parts


@pytest.mark.some(3)
@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
@pytest.mark.parametrize("fmt", FORMATS)
def test_experts_one_by_one(name, fmt):
    model = build(name)
    bs.quantize_(model, bs.Recipe(fmt, skip=["*self_attn*", "*embed_tokens", "lm_head"]))
    back, floats, found = Back(model), {}, {}
    for parameter, weight in all_held(model):
        floats[parameter] = weight.dequantize()
        found |= back.quantized(parameter, *held(weight))
    expected = revert_weight_conversion(model, floats)
    assert found.keys() == expected.keys() and len(found) == 3 * 3
    for stored, piece in found.items():
        assert torch.equal(piece.dequantize(), expected[stored]), stored
    if fmt == "int8":  # each matrix, and the gate beside the up projection, had a scale of its own
        assert {str(piece.format) for piece in found.values()} == {"int8:tensor:fp32"}


def test_names_and_floats():
    model = build("mixtral")
    back = Back(model)
    state = dict(model.state_dict())
    found = {}
    for name, tensor in state.items():
        found |= back.plain(name, tensor)
    expected = revert_weight_conversion(model, state)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)
    gate = "model.layers.0.mlp.gate.weight"
    assert back.name(gate) == "model.layers.0.block_sparse_moe.gate.weight"
    assert (
        back.name("model.layers.0.mlp.experts.down_proj") == "model.layers.0.mlp.experts.down_proj"
    )


def test_what_stays_whole():
    """One scale for several experts; models that are none of transformers."""
    model = build("mixtral")
    bs.quantize_(model, bs.Recipe("int4:group16:fp32", skip=["*self_attn*", "lm_head"]))
    name, weight = next(all_held(model))
    info, parts = held(weight)
    whole = TensorInfo("int4:tensor:fp32", info.shape)
    assert Back(model).quantized(name, whole, parts | {"scale": torch.ones(1, 1, 1)}) == {}
    plain = nn.Sequential(nn.Linear(2, 2))
    assert Back(plain).quantized("0.weight", TensorInfo("int8:tensor:fp32", (2, 2)), {}) == {}
    assert Back(plain).name("0.weight") == "0.weight"


def test_conversions_are_those_of_loading(monkeypatch):
    model = build("mixtral")
    assert conversions_of(model) and not any(
        "Prefix" in str(type(c)) for c in conversions_of(model)
    )
    model._weight_conversions = []
    assert conversions_of(model) == []
    assert isinstance(model, transformers.PreTrainedModel)
