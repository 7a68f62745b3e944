# SPDX-License-Identifier: BSD-3-Clause
"""Directories appear whole or not at all; weights are split where they are large."""

import json

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import blockscale as bs
from blockscale.export.to_compressed_tensors import directory
from blockscale.export.to_compressed_tensors.directory import matrices
from blockscale.files.directory import output
from blockscale.files.metadata import FileError
from blockscale.files.renaming_apart import Back
from tests.support.renaming_hub import build


def test_shards_and_their_index(tmp_path, monkeypatch):
    monkeypatch.setattr(directory, "SHARD", 100)
    tensors = {name: torch.arange(16.0) + i for i, name in enumerate("abc")}  # 64 bytes each
    directory.write(tmp_path, {"x": 1}, tensors)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 192
    assert len(set(index["weight_map"].values())) == 3
    for name, file in index["weight_map"].items():
        assert torch.equal(load_file(tmp_path / file)[name], tensors[name])


def test_places(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="is a file: name a directory"):
        directory.check_directory(tmp_path / "file")
    with pytest.raises(ValueError, match="exists and is not empty"):
        directory.check_directory(tmp_path)
    with pytest.raises(ValueError, match="is not a directory: create it first"):
        directory.check_directory(tmp_path / "no" / "out")
    assert directory.check_directory(tmp_path / "out") == tmp_path / "out"


def test_what_is_known_before_any_work(tmp_path, monkeypatch):
    with pytest.raises(FileError, match="is too long: a run needs"):
        directory.check_directory(tmp_path / ("n" * 240))
    monkeypatch.setattr(output, "mounts_in", lambda path: [path])
    (tmp_path / "out").mkdir()
    with pytest.raises(FileError, match="is a mount point"):
        directory.check_directory(tmp_path / "out")


JOINED_MARK = pytest.mark.filterwarnings("ignore")  # of reciprocals that are not exact


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        for name, size in (("q_proj", 1.0), ("k_proj", 7.0), ("v_proj", 0.1)):
            self.add_module(name, nn.Linear(64, 32, bias=False))
            self.get_submodule(name).weight.data *= size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.q_proj(x) + self.k_proj(x) + self.v_proj(x)


@JOINED_MARK
def test_one_divisor_for_all(tmp_path) -> None:
    """Also in its last bit, though the scales of each layer would do with others."""
    model = nn.ModuleDict({"attn": Attention()})
    bs.quantize_(model, "nvfp4")
    bs.export.compressed_tensors(model, tmp_path / "out")
    held = load_file(tmp_path / "out" / "model.safetensors")
    found = {float(held[f"attn.{n}_proj.weight_global_scale"]) for n in "qkv"}
    assert len(found) == 1


@JOINED_MARK
def test_layers_that_disagree_are_refused(tmp_path) -> None:
    model = nn.ModuleDict({"attn": Attention()})
    bs.quantize_(model, bs.Recipe("nvfp4", fused=False))
    with pytest.raises(ValueError, match=r"q_proj, k_proj, v_proj of attn have the outer scales"):
        bs.export.compressed_tensors(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@JOINED_MARK
def test_static_inputs_that_disagree_are_refused(tmp_path) -> None:
    model = nn.ModuleDict({"attn": Attention()})
    scales = {
        f"attn.{n}_proj": torch.full((1,), s) for n, s in (("q", 0.1), ("k", 0.1), ("v", 0.2))
    }
    bs.quantize_(model, bs.Recipe("int8_channel", input="int8:tensor:fp32"), input_scales=scales)
    with pytest.raises(ValueError, match="of attn have different static input scales"):
        bs.export.compressed_tensors(model, tmp_path / "out")


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
    assert {tuple(each.weight.shape) for each in stacks.values()} == {(48, 32), (32, 48)}


def test_other_parameters_have_no_place():
    model = nn.ModuleDict({"attention": nn.MultiheadAttention(64, 4), "rnn": nn.LSTM(64, 64)})
    bs.quantize_(model, "int4:group32:fp32")
    stacks, refused = found(model)
    assert stacks == {}
    assert refused["attention.in_proj_weight"] == (
        "it is a parameter of MultiheadAttention, not the weight of an nn.Linear"
    )
    assert set(refused) == {"attention.in_proj_weight", "rnn.weight_ih_l0", "rnn.weight_hh_l0"}
