# SPDX-License-Identifier: BSD-3-Clause
"""Settings that llama.cpp has no place for are refused or said, each by its name."""

from typing import Any

import pytest

from blockscale.export.checkpoints.gguf.families import FAMILIES
from blockscale.export.writers.gguf_files.settings import check_settings, window_keys, window_of
from tests.support.tiny import KINDS


@pytest.mark.parametrize("kind", FAMILIES)
def test_what_transformers_writes_is_known(kind: str) -> None:
    """No key of a config.json that transformers saves is called unknown."""
    from transformers import AutoConfig

    found = AutoConfig.for_model(kind, **KINDS[kind])
    assert check_settings(found.to_dict(), FAMILIES[kind]) == []
    assert check_settings(found.to_diff_dict(), FAMILIES[kind]) == []


@pytest.mark.parametrize(
    ("kind", "setting", "value"),
    [
        ("llama", "hidden_act", "gelu"),
        ("llama", "attn_logit_softcapping", 50.0),
        ("llama", "final_logit_softcapping", 30.0),
        ("llama", "partial_rotary_factor", 0.5),
        ("llama", "num_local_experts", 8),
        ("llama", "logits_scaling", 8.0),
        ("mistral", "attention_chunk_size", 128),
        ("qwen3_moe", "norm_topk_prob", False),
        ("qwen3_moe", "norm_topk_prob", None),
        ("qwen2_moe", "norm_topk_prob", True),
        ("qwen2_moe", "decoder_sparse_step", 2),
        ("qwen2_moe", "mlp_only_layers", [0]),
        ("gemma2", "query_pre_attn_scalar", 144),
        ("gemma2", "hidden_activation", "relu"),
        ("gemma3_text", "use_bidirectional_attention", True),
        ("gemma3_text", "attn_logit_softcapping", 50.0),
        ("gpt2", "scale_attn_by_inverse_layer_idx", True),
        ("gpt2", "scale_attn_weights", False),
        ("gpt2", "activation_function", "relu"),
        ("gpt2", "add_cross_attention", True),
    ],
)
def test_what_is_refused(kind: str, setting: str, value: Any) -> None:
    told = rf"config.json: {setting} is .*architecture {FAMILIES[kind].arch} has no key for it"
    with pytest.raises(ValueError, match=told):
        check_settings(KINDS[kind] | {setting: value}, FAMILIES[kind])


def test_a_part_of_a_head_by_its_place_of_now() -> None:
    positions = {"rope_type": "default", "partial_rotary_factor": 0.25}
    with pytest.raises(ValueError, match=r"partial_rotary_factor is 0\.25"):
        check_settings(KINDS["qwen2"] | {"rope_parameters": positions}, FAMILIES["qwen2"])
    assert check_settings(KINDS["phi3"], FAMILIES["phi3"]) == []


def test_the_scale_of_the_largest_gemma() -> None:
    """llama.cpp knows Gemma 2's model of 27 B by its 46 layers."""
    large = KINDS["gemma2"] | {"num_hidden_layers": 46, "hidden_size": 4608,
                               "num_attention_heads": 32, "head_dim": 128}  # fmt: skip
    assert check_settings(large | {"query_pre_attn_scalar": 144}, FAMILIES["gemma2"]) == []
    with pytest.raises(ValueError, match="query_pre_attn_scalar is 128"):
        check_settings(large | {"query_pre_attn_scalar": 128}, FAMILIES["gemma2"])


def test_what_is_not_known_is_said() -> None:
    more = {"attention_temperature": 2.0, "b": 1, "a": 1, "c": 2}
    [note] = check_settings(KINDS["llama"] | more, FAMILIES["llama"])
    assert "'a', 'attention_temperature', 'b' and 1 more are unknown and not written" in note


@pytest.mark.parametrize(
    ("config", "window"),
    [
        ({"sliding_window": 32}, 32),
        ({"sliding_window": 32, "use_sliding_window": True}, 32),
        ({"sliding_window": 32, "use_sliding_window": False}, 0),
        ({"sliding_window": 32, "layer_types": ["full_attention"]}, 0),
        ({"sliding_window": 32, "layer_types": ["full_attention", "sliding_attention"]}, 32),
        ({"sliding_window": None}, 0),
        ({"sliding_window": 0}, 0),
        ({}, 0),
    ],
)
def test_windows(config: dict[str, Any], window: int) -> None:
    assert window_of(config) == window


@pytest.mark.parametrize("kind", ["mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "phi3"])
def test_the_context_ends_with_a_window_that_llama_cpp_has_not(kind: str) -> None:
    config = KINDS[kind] | {"sliding_window": 32}
    found, [note] = window_keys(config, FAMILIES[kind])
    arch = FAMILIES[kind].arch
    assert {key: value.value for key, value in found.items()} == {f"{arch}.context_length": 32}
    assert "sees" not in note and "last 32 tokens (sliding_window)" in note and "not 128" in note
    assert window_keys(config | {"sliding_window": 128}, FAMILIES[kind]) == ({}, [])


def test_which_layers_have_the_window() -> None:
    """Only where they are not what llama.cpp takes for granted: every one but the sixth."""
    gemma = FAMILIES["gemma3_text"]
    usual = ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"]
    assert window_keys(KINDS["gemma3_text"] | {"layer_types": usual}, gemma) == ({}, [])
    assert window_keys(KINDS["gemma3_text"], gemma) == ({}, [])
    found, _ = window_keys(KINDS["gemma3_text"] | {"sliding_window_pattern": 2}, gemma)
    [(key, value)] = found.items()
    assert key == "gemma3.attention.sliding_window_pattern"
    assert value.value == [True, False, True, False, True, False, True]
