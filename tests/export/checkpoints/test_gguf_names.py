"""GGUF's names in a model of transformers, and rows of attention put back."""

import pathlib

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.export.checkpoints.checkpoint import Checkpoint, Stored
from blockscale.export.checkpoints.gguf_names import as_in_model
from blockscale.files.metadata import FileError
from tests.export.checkpoints.test_loading import RECORDED
from tests.recorded.record_gguf_llama import permuted

HEADS = {"llama.attention.head_count": 4, "llama.attention.head_count_kv": 2}


class File(Checkpoint):
    tensors: dict

    def _read(self, stored):
        return self.tensors[stored.name]


def found(names, **metadata):
    file = File(pathlib.Path("x.gguf"), "")
    file.metadata = {"general.architecture": "llama"} | HEADS | metadata
    file.stored = {name: Stored(name, "F32", (32, 8), 1024) for name in names}
    return file


def test_names_and_rows():
    names = ["token_embd.weight", "output_norm.weight", "blk.3.attn_k.weight", "blk.0.attn_q.bias",
             "blk.11.ffn_down.weight", "rope_freqs.weight"]  # fmt: skip
    given = as_in_model(nn.Module(), found(names))
    assert {new.removeprefix("model."): given.pieces[new].sources for new in given} == {
        "embed_tokens.weight": (names[0],), "norm.weight": (names[1],),
        "layers.3.self_attn.k_proj.weight": (names[2],),
        "layers.0.self_attn.q_proj.bias": (names[3],),
        "layers.11.mlp.down_proj.weight": (names[4],),
    }  # fmt: skip
    for name, heads in (
        ("layers.3.self_attn.k_proj.weight", 2),
        ("layers.0.self_attn.q_proj.bias", 4),
    ):
        rows = torch.arange(32)
        there = torch.from_numpy(permuted(rows.numpy()[:, None], heads)[:, 0].copy())
        [whole] = [each for each in given if each.endswith(name)]
        given.inner.tensors = dict.fromkeys(names, there)
        assert torch.equal(given[whole], rows)
        given.inner.tensors = dict.fromkeys(names, torch.arange(18))
        with pytest.raises(FileError, match=r"18 rows are no . heads of an even size"):
            given[whole]


def test_only_llama_is_permuted():
    """qwen2's converter leaves the rows of attn_q where they are."""
    told = {"general.architecture": "qwen2"}
    [piece] = as_in_model(nn.Module(), found(["blk.0.attn_q.weight"], **told)).pieces.values()
    assert piece.heads == 0


@pytest.mark.parametrize(
    ("names", "metadata", "told"),
    [
        ([], {"general.architecture": "mamba"}, "holds the architecture 'mamba'; loaded into"),
        ([], {"general.architecture": None}, "holds the architecture 'None'"),
        (["blk.0.ssm_a"], {}, "'blk.0.ssm_a' is no tensor of a llama"),
        (["blk.0.attn_qkv.weight"], {}, "'blk.0.attn_qkv.weight' is no tensor of a llama"),
        (["blk.0.attn_q.weight"], {"llama.attention.head_count": 0}, "head_count is 0"),
        (["blk.0.attn_k.weight"], {"llama.attention.head_count_kv": [2, 2]}, r"is \[2, 2\]"),
    ],
)  # fmt: skip
def test_what_is_refused(names, metadata, told):
    with pytest.raises(FileError, match=told):
        as_in_model(nn.Module(), found(names, **metadata))


def test_a_model_of_another_kind():
    with pytest.raises(bs.FileError, match=r"it has .* which this model has not|is not of this"):
        bs.load(nn.Sequential(nn.Linear(64, 8)), RECORDED / "llama.gguf")
