"""Names and keys: gguf 0.19.0's own (tests/recorded/record_gguf_names.py)."""

import json
from pathlib import Path

import pytest

from blockscale.export.writers.gguf_files import architectures
from tests.export.conversion.models import CONFIG

RECORDED = json.loads((Path(__file__).parents[3] / "recorded" / "gguf_names.json").read_text())


@pytest.mark.parametrize("arch", RECORDED)
def test_names(arch: str) -> None:
    assert len(RECORDED[arch]) >= 12
    for ours, theirs in RECORDED[arch].items():
        assert architectures.to_gguf(ours) == theirs
        assert architectures.from_gguf(theirs) == ours
        bias = ours.removesuffix("weight") + "bias"
        assert architectures.from_gguf(str(architectures.to_gguf(bias))) == bias


def test_other_names() -> None:
    for name in ("model.layers.0.mlp.experts.weight", "blk.0.attn_q.weight", "lm_head.weights"):
        assert architectures.to_gguf(name) is None
    assert architectures.from_gguf("blk.0.ffn_gate_exps.weight") is None
    assert architectures.from_gguf("rope_freqs.weight") is None


def test_keys_there_and_back() -> None:
    found = architectures.keys(CONFIG | {"head_dim": 64, "bos_token_id": 3})
    assert found["llama.attention.head_count_kv"].value == 2
    assert found["llama.rope.freq_base"].value == 10_000.0
    metadata = {key: value.value for key, value in found.items()}
    metadata |= {"tokenizer.ggml.bos_token_id": 3}
    back = architectures.config_of(metadata, ["output.weight"])
    for key in ("hidden_size", "num_key_value_heads", "rms_norm_eps", "head_dim", "vocab_size"):
        assert back[key] == (CONFIG | {"head_dim": 64})[key]
    assert back["tie_word_embeddings"] is False and back["bos_token_id"] == 3
    assert architectures.config_of(metadata, [])["tie_word_embeddings"] is True


@pytest.mark.parametrize("value", [None, "many", -1, 2.5, True, 2**40])
def test_settings_that_are_wrong(value: object) -> None:
    with pytest.raises(ValueError, match=r"config.json: hidden_size is .*, expected a number"):
        architectures.keys(CONFIG | {"hidden_size": value})


def test_what_is_not_known() -> None:
    with pytest.raises(ValueError, match=r"model_type 'phi9'.*known are llama, mistral, qwen2"):
        architectures.of_config({"model_type": "phi9"})
    with pytest.raises(ValueError, match=r"architecture 'phi9'.*known are llama, qwen2, qwen3"):
        architectures.of_metadata({"general.architecture": "phi9"})
    with pytest.raises(ValueError, match=r"no number llama.context_length"):
        architectures.config_of({"general.architecture": "llama"}, [])


def test_scaled_positions_there_and_back() -> None:
    scaling = {"rope_type": "linear", "factor": 2.0}
    found = architectures.keys(CONFIG | {"rope_scaling": scaling})
    metadata = {key: value.value for key, value in found.items()}
    assert architectures.config_of(metadata, [])["rope_scaling"] == scaling
