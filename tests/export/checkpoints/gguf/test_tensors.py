# SPDX-License-Identifier: BSD-3-Clause
"""Names and pieces, of every kind of model, there and back."""

from pathlib import Path

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.export.checkpoints.checkpoint import Checkpoint, Stored
from blockscale.export.checkpoints.gguf.families import FAMILIES
from blockscale.export.checkpoints.gguf.tensors import from_gguf, pieces_in_model, to_gguf
from blockscale.export.checkpoints.regrouped import RegroupedCheckpoint
from blockscale.files.metadata import FileError
from tests.recorded.record_gguf_llama import permuted
from tests.support.checkpoints_loading import RECORDED

HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
METADATA = {"llama.attention.head_count": 4, "llama.attention.head_count_kv": 2}


def names_of(kind: str) -> list[str]:
    family = FAMILIES[kind]
    names = [f"{layer}.weight" for layer in family.whole]
    names += [family.block.format(11) + f"{layer}.weight" for layer in family.inside]
    for expert in family.experts:
        where = family.block.format(11) + f"{family.experts_in}.experts"
        names += [f"{where}.{i}.{expert}.weight" for i in range(12)]
    return names


@pytest.mark.parametrize("kind", FAMILIES)
def test_there_and_back(kind: str) -> None:
    family, names = FAMILIES[kind], names_of(kind)
    found, unknown = to_gguf(names, family, HEADS)
    assert not unknown and sorted(n for p in found.values() for n in p.sources) == sorted(names)
    shapes = {name: (12, 8, 8) if "_exps" in name else (8, 8) for name in found}
    back, unknown = from_gguf(shapes, family, HEADS)
    assert not unknown and sorted(back) == sorted(names)
    for name, piece in back.items():
        there = found[piece.sources[0]]
        assert (there.heads, there.addend, there.transpose) == (
            -piece.heads,
            -piece.addend,
            piece.transpose,
        )
        assert there.sources[piece.expert or 0] == name


def test_rows_of_heads_norms_and_turned_layers() -> None:
    found, _ = to_gguf(names_of("llama"), FAMILIES["llama"], HEADS)
    assert found["blk.11.attn_q.weight"].heads == 4 and found["blk.11.attn_k.weight"].heads == 2
    assert found["blk.11.attn_v.weight"].heads == 0 and not found["output_norm.weight"].addend
    found, _ = to_gguf(names_of("gemma3_text"), FAMILIES["gemma3_text"], HEADS)
    added = {n.rpartition(".")[0].removeprefix("blk.11.") for n, p in found.items() if p.addend}
    assert added == {
        "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "attn_q_norm",
        "attn_k_norm", "output_norm",
    }  # fmt: skip
    found, _ = to_gguf(names_of("gpt2"), FAMILIES["gpt2"], HEADS)
    assert {n for n, p in found.items() if p.transpose} == {
        f"blk.11.{layer}.weight" for layer in ("attn_qkv", "attn_output", "ffn_up", "ffn_down")
    }


def test_names_of_base_models() -> None:
    found, unknown = to_gguf(["h.0.ln_1.weight", "wte.weight"], FAMILIES["gpt2"], {})
    assert list(found) == ["blk.0.attn_norm.weight", "token_embd.weight"] and not unknown


def test_experts_as_modules_have_them() -> None:
    names = ["model.layers.2.mlp.experts.gate_up_proj", "model.layers.2.mlp.experts.down_proj"]
    found, unknown = to_gguf(names, FAMILIES["qwen3_moe"], HEADS)
    assert not unknown and {n: (p.sources[0], p.half) for n, p in found.items()} == {
        "blk.2.ffn_gate_exps.weight": (names[0], 0), "blk.2.ffn_up_exps.weight": (names[0], 1),
        "blk.2.ffn_down_exps.weight": (names[1], None),
    }  # fmt: skip
    back, _ = from_gguf(dict.fromkeys(found, (4, 8, 8)), FAMILIES["qwen3_moe"], HEADS, modules=True)
    assert back[names[0]].sources == ("blk.2.ffn_gate_exps.weight", "blk.2.ffn_up_exps.weight")
    assert back[names[1]].sources == ("blk.2.ffn_down_exps.weight",)


def test_what_has_no_place() -> None:
    """A bias that llama.cpp does not add, an expert that is missing, another model's layer."""
    bias = "model.layers.0.self_attn.o_proj.bias"
    assert to_gguf([bias], FAMILIES["qwen2"], HEADS) == ({}, [bias])
    assert to_gguf([bias], FAMILIES["llama"], HEADS)[1] == []
    one = "model.layers.0.mlp.experts.1.up_proj.weight"
    assert to_gguf([one], FAMILIES["qwen3_moe"], HEADS)[1] == [one]
    for name in ("model.layers.0.mlp.experts.weight", "lm_head.weights", "model.layers.x.a.weight"):
        assert to_gguf([name], FAMILIES["llama"], HEADS)[1] == [name]
    others = {"blk.0.ffn_gate_exps.weight": (8, 8), "rope_freqs.weight": (4,)}
    assert from_gguf(others, FAMILIES["llama"], HEADS) == ({}, list(others))


def test_two_tensors_of_one_name() -> None:
    names = ["wte.weight", "transformer.wte.weight"]
    with pytest.raises(FileError, match=r"'transformer.wte.weight' and 'wte.weight' would both be"):
        to_gguf(names, FAMILIES["gpt2"], HEADS)


class File(Checkpoint):
    """Tensors [32, 8] of these names, as a file of a llama might have them."""

    tensors: dict

    def __init__(self, names, **metadata):
        super().__init__(Path("x.gguf"), "")
        self.metadata = {"general.architecture": "llama"} | METADATA | metadata
        self.stored = {name: Stored(name, "F32", (32, 8), 1024) for name in names}

    def _read(self, stored):
        return self.tensors[stored.name]


def in_model(names, **metadata) -> RegroupedCheckpoint:
    file = File(names, **metadata)
    return RegroupedCheckpoint(
        file, pieces_in_model(nn.Module(), file.path, file.metadata, file.stored)
    )


def test_names_and_rows_in_a_model():
    names = ["token_embd.weight", "output_norm.weight", "blk.3.attn_k.weight", "blk.0.attn_q.bias",
             "blk.11.ffn_down.weight", "rope_freqs.weight"]  # fmt: skip
    given = in_model(names)
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
        with pytest.raises(
            FileError,
            match=rf"'{name}': 18 rows cannot be divided into {heads} heads of an even size",
        ):
            given[whole]


def test_only_llama_is_permuted():
    """qwen2's converter leaves the rows of attn_q where they are."""
    told = {"general.architecture": "qwen2"}
    [piece] = in_model(["blk.0.attn_q.weight"], **told).pieces.values()
    assert piece.heads == 0


@pytest.mark.parametrize(
    ("names", "metadata", "told"),
    [
        ([], {"general.architecture": "mamba"}, "the architecture 'mamba'; only llama, qwen2"),
        ([], {"general.architecture": None}, "holds the architecture 'None'"),
        (["blk.0.ssm_a"], {}, "'blk.0.ssm_a' is not a tensor of a llama"),
        (["blk.0.attn_qkv.weight"], {}, "'blk.0.attn_qkv.weight' is not a tensor of a llama"),
        (["blk.0.attn_q.weight"], {"llama.attention.head_count": 0}, "head_count is 0"),
        (["blk.0.attn_k.weight"], {"llama.attention.head_count_kv": [2, 2]}, r"is \[2, 2\]"),
    ],
)  # fmt: skip
def test_what_no_model_has(names, metadata, told):
    with pytest.raises(FileError, match=told):
        in_model(names, **metadata)


def test_a_model_of_another_kind():
    with pytest.raises(
        bs.FileError, match=r"it has .* which this model does not have|does not belong to this"
    ):
        bs.load(nn.Sequential(nn.Linear(64, 8)), RECORDED / "llama.gguf")
