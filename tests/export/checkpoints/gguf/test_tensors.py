"""Names and pieces, of every kind of model, there and back."""

import pytest

from blockscale.export.checkpoints.gguf.families import FAMILIES
from blockscale.export.checkpoints.gguf.tensors import from_gguf, to_gguf
from blockscale.files.metadata import FileError

HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


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
        assert (there.heads, there.added, there.turned) == (
            -piece.heads,
            -piece.added,
            piece.turned,
        )
        assert there.sources[piece.expert or 0] == name


def test_rows_of_heads_norms_and_turned_layers() -> None:
    found, _ = to_gguf(names_of("llama"), FAMILIES["llama"], HEADS)
    assert found["blk.11.attn_q.weight"].heads == 4 and found["blk.11.attn_k.weight"].heads == 2
    assert found["blk.11.attn_v.weight"].heads == 0 and not found["output_norm.weight"].added
    found, _ = to_gguf(names_of("gemma3_text"), FAMILIES["gemma3_text"], HEADS)
    added = {n.rpartition(".")[0].removeprefix("blk.11.") for n, p in found.items() if p.added}
    assert added == {
        "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "attn_q_norm",
        "attn_k_norm", "output_norm",
    }  # fmt: skip
    found, _ = to_gguf(names_of("gpt2"), FAMILIES["gpt2"], HEADS)
    assert {n for n, p in found.items() if p.turned} == {
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
