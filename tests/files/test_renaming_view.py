# SPDX-License-Identifier: BSD-3-Clause
"""What else than weights moves: formats of inputs, static scales, other names of one tensor."""

import json
import warnings

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import blockscale as bs
from blockscale.files.load import view_for
from blockscale.files.metadata import DIGEST, KEY, FileError, Metadata, TensorInfo, _digest
from blockscale.files.stored_model import open_stored_model
from blockscale.layers.store import all_held
from tests.support.renaming_hub import build, save
from tests.support.renaming_oracle import differing

OLD = "language_model.model"


def as_the_hub_had_it(path):
    """The file of a llava model with the names that llava had before transformers 4.52."""
    file = path / "model.safetensors"
    tensors = load_file(file)
    text = json.loads(open_stored_model(path).metadata.encode()[KEY])

    def old(name):
        return name.replace("model.language_model", OLD).replace(
            "model.vision_tower", "vision_tower"
        )

    for part in ("tensors", "layers"):
        text[part] = {old(name): value for name, value in text[part].items()}
    text["aliases"] = {old(name): old(to) for name, to in text["aliases"].items()}
    told = json.dumps(text, sort_keys=True)
    view_for = {old(name): tensor for name, tensor in tensors.items()}
    save_file(view_for, file, {"format": "pt", KEY: told, DIGEST: _digest(told)})


def test_layers_with_inputs_and_static_scales(tmp_path):
    model = build("llava")
    names = list(model.state_dict())
    layer = "model.language_model.layers.0.mlp.up_proj"
    scale = {layer: torch.tensor([[0.05]])}
    bs.quantize_(model, bs.Recipe("int8", "int8"), input_scales=scale)
    bs.save(model, tmp_path / "model.safetensors")
    as_the_hub_had_it(tmp_path)
    assert any(name.startswith(OLD) for name in open_stored_model(tmp_path).files)
    found = bs.load(build("llava", 1), tmp_path)
    assert differing(found, model, names) == []
    assert torch.equal(
        found.get_submodule(layer).input.scale, model.get_submodule(layer).input.scale
    )
    assert found.get_submodule(layer).input.static


def test_inputs_of_experts(tmp_path):
    model = build("mixtral")
    recipe = bs.Recipe("mxfp4", "mxfp8")
    bs.quantize_directory(save(model, tmp_path / "float"), tmp_path / "quantized", recipe)
    with warnings.catch_warnings(action="error"):
        found = bs.load(build("mixtral", 1), tmp_path / "quantized")
    mxfp8 = "e4m3:group32:e8m0/floor"
    assert found.get_submodule("model.layers.0.self_attn.q_proj").input.fmt == mxfp8
    stacks = {name: weight.input.fmt for name, weight in all_held(found)}
    assert set(stacks.values()) == {mxfp8}
    assert "model.layers.0.mlp.experts.gate_up_proj" in stacks


def test_a_part_that_is_missing(tmp_path):
    model = build("mixtral")
    bs.quantize_directory(save(model, tmp_path / "float"), tmp_path / "quantized", "mxfp4")
    file = tmp_path / "quantized" / "model.safetensors"
    source = open_stored_model(tmp_path / "quantized")
    tensors = load_file(file)
    del tensors["model.layers.0.block_sparse_moe.experts.1.w3.weight.scale"]
    save_file(tensors, file, source.metadata.encode())
    with pytest.raises(FileError, match=r"experts\.1\.w3\.weight\.scale is missing"):
        bs.load(build("mixtral", 1), tmp_path / "quantized")


def test_other_names_of_one_tensor(tmp_path):
    """A tied tensor, stored once under a hub's name, is found under both names."""
    metadata = Metadata({}, {}, {"lm_head.weight": "wte.weight"})
    config = transformers.GPT2Config(n_embd=32, n_layer=0, n_head=2, vocab_size=64, n_positions=8)
    model = transformers.GPT2LMHeadModel(config)
    tensors = {
        n.removeprefix("transformer."): t
        for n, t in model.state_dict().items()
        if n != "lm_head.weight"
    }
    save_file(
        {n: t.clone() for n, t in tensors.items()},
        tmp_path / "model.safetensors",
        metadata.encode(),
    )
    view = view_for(model, open_stored_model(tmp_path))
    assert view.metadata.aliases == {"lm_head.weight": "transformer.wte.weight"}
    assert set(view.files) == set(model.state_dict()) - {"lm_head.weight"}
    info = TensorInfo("int8:tensor:fp32", (2, 2))
    assert view.metadata.tensors == {} and info.layout == "plain"
    assert torch.equal(
        view.read(["transformer.wpe.weight"])["transformer.wpe.weight"], tensors["wpe.weight"]
    )
