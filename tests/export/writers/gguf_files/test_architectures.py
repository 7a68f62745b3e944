# SPDX-License-Identifier: BSD-3-Clause
"""Keys of a file from config.json, and back."""

from typing import Any

import pytest

from blockscale.export.checkpoints.gguf.families import FAMILIES, of_metadata
from blockscale.export.writers.gguf_files import architectures
from blockscale.export.writers.gguf_files.architectures import (
    kind_of,
    rope,
    scaling_keys,
    scaling_of,
)
from tests.support.conversion_models import CONFIG
from tests.support.tiny import KINDS


def test_keys_there_and_back() -> None:
    found, notes = architectures.keys(CONFIG | {"head_dim": 64, "bos_token_id": 3})
    assert not notes
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
    with pytest.raises(
        ValueError, match=r"model_type 'phi9'.*known model types: llama, mistral, qwen2"
    ):
        architectures.of_config({"model_type": "phi9"})
    with pytest.raises(
        ValueError, match=r"architecture 'phi9'.*known architectures: llama, qwen2, qwen3"
    ):
        of_metadata({"general.architecture": "phi9"})
    with pytest.raises(ValueError, match=r"no number llama.context_length"):
        architectures.config_of({"general.architecture": "llama"}, [])


def test_scaled_positions_there_and_back() -> None:
    scaling = {"rope_type": "linear", "factor": 2.0}
    found, _ = architectures.keys(CONFIG | {"rope_scaling": scaling})
    metadata = {key: value.value for key, value in found.items()}
    assert architectures.config_of(metadata, [])["rope_scaling"] == scaling


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_kind_there_and_back(kind: str) -> None:
    """Whatever a config says and a file has a key for comes back as it was."""
    config = {"model_type": kind} | KINDS[kind]
    found, notes = architectures.keys(config)
    assert not notes and found["general.architecture"].value == FAMILIES[kind].arch
    metadata = {key: value.value for key, value in found.items()}
    back = architectures.config_of(metadata, [] if FAMILIES[kind].ties else ["output.weight"])
    assert back["model_type"] == ("llama" if kind == "mistral" else kind)
    assert back["architectures"] == [FAMILIES[kind].class_name]
    left = {"bos_token_id", "eos_token_id", "pad_token_id", "rope_parameters", "attention_bias",
            "mlp_bias"}  # fmt: skip
    for key in config.keys() - left - {"model_type"}:
        if config[key] is not None:
            assert back[key] == pytest.approx(config[key]), key


def test_positions_of_gemma_3_and_of_a_part_of_a_head() -> None:
    found, _ = architectures.keys({"model_type": "gemma3_text"} | KINDS["gemma3_text"])
    told = {key.removeprefix("gemma3."): value.value for key, value in found.items()}
    assert (told["rope.freq_base"], told["rope.freq_base_swa"]) == (5e5, 700.0)
    assert (told["rope.scaling.type"], told["rope.scaling.factor"]) == ("linear", 2.0)
    local = {"rope_type": "linear", "factor": 2.0}
    both = {"full_attention": {}, "sliding_attention": local}
    with pytest.raises(ValueError, match=r"sliding window are scaled by 'linear', for which"):
        architectures.keys(
            {"model_type": "gemma3_text"} | KINDS["gemma3_text"] | {"rope_parameters": both}
        )
    found, _ = architectures.keys({"model_type": "phi3"} | KINDS["phi3"])
    assert found["phi3.rope.dimension_count"].value == 8  # half of a head of 16
    metadata = {key: value.value for key, value in found.items()}
    assert architectures.config_of(metadata, [])["partial_rotary_factor"] == 0.5


def test_what_tensors_tell() -> None:
    metadata = {key: value.value for key, value in architectures.keys(CONFIG)[0].items()}
    back = architectures.config_of(metadata, ["blk.0.attn_q.bias", "blk.0.ffn_up.bias"])
    assert back["attention_bias"] is True and back["mlp_bias"] is True
    slides = {"gemma3.attention.sliding_window_pattern": [True, False] * 3 + [False]}
    found, _ = architectures.keys({"model_type": "gemma3_text"} | KINDS["gemma3_text"])
    metadata = {key: value.value for key, value in found.items()} | slides
    kinds = architectures.config_of(metadata, [])["layer_types"]
    assert kinds == ["sliding_attention", "full_attention"] * 3 + ["full_attention"]


# Scaled positions as a GGUF file's keys, and back; what neither has is refused by name.

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}


@pytest.mark.parametrize("settings", [YARN, {"rope_type": "linear", "factor": 2.5}])
@pytest.mark.parametrize("place", ["rope_parameters", "rope_scaling"])
def test_there_and_back(settings: dict[str, Any], place: str) -> None:
    found = scaling_keys("llama", {place: settings | {"rope_theta": 1e6}})
    assert {key: each.kind for key, each in found.items()} == {
        "llama.rope.scaling.type": "text",
        "llama.rope.scaling.factor": "f32",
    } | ({"llama.rope.scaling.original_context_length": "u32"} if settings is YARN else {})
    assert scaling_of("llama", {key: each.value for key, each in found.items()}) == settings


def test_what_is_not_scaled() -> None:
    for settings in (None, {}, {"rope_type": "default"}, {"type": "llama3", "factor": 8.0}):
        assert scaling_keys("llama", {"rope_scaling": settings}) == {}
    for metadata in ({}, {"llama.rope.scaling.type": "none"}, {"llama.rope.scale_linear": 1.0}):
        assert scaling_of("llama", metadata) is None
    assert (kind_of({}), kind_of({"type": "yarn"})) == ("default", "yarn")


def test_lengths_that_are_told_elsewhere() -> None:
    """The length that yarn starts from is the model's own where nothing else is said, in both."""
    config = {"max_position_embeddings": 2048, "rope_scaling": {"type": "yarn", "factor": 2}}
    found = {key: each.value for key, each in scaling_keys("qwen2", config).items()}
    assert found["qwen2.rope.scaling.original_context_length"] == 2048
    del found["qwen2.rope.scaling.original_context_length"]
    back = scaling_of("qwen2", found | {"qwen2.context_length": 2048})
    assert back is not None and back["original_max_position_embeddings"] == 2048


def test_older_files() -> None:
    older = {"llama.rope.scale_linear": 4.0, "llama.rope.scaling.finetuned": True}
    assert scaling_of("llama", older) == {"rope_type": "linear", "factor": 4.0}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"rope_type": "dynamic"}, "scaled by 'dynamic'.*supported: default, llama3, linear, yarn"),
        (YARN | {"beta_fast": 16}, "yarn's beta_fast is '16', and only its default"),
        (YARN | {"attention_factor": 1.0}, "yarn's attention_factor is '1.0'"),
        (YARN | {"truncate": False}, "yarn's truncate is 'False'"),
        ({"rope_type": "linear"}, "the factor of rotary positions is 'None', expected a number"),
        ({"rope_type": "linear", "factor": "8"}, "is '8', expected a number >= 1"),
        ({"rope_type": "linear", "factor": float("inf")}, "is infinite"),
    ],
)
def test_settings_without_a_key(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        scaling_keys("llama", {"rope_parameters": settings})
    assert rope({"rope_theta": 3.0}) == {"rope_theta": 3.0}


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"rope.scaling.type": "su"}, "scaling.type = 'su'.*which cannot be translated"),
        (
            {"rope.scaling.type": "yarn", "rope.scale_linear": 2.0},
            "cannot be translated: pass the config",
        ),
        (
            {"rope.scaling.type": "none", "rope.scale_linear": 2.0},
            "cannot be translated: pass the config",
        ),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": True}, "scaling.factor is 'True'"),
        (
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.yarn_ext": 1.0},
            "scaling.'yarn_ext', which cannot be translated",
        ),
        ({"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}, "context_length is 'None'"),
    ],
)
def test_keys_without_a_setting(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        scaling_of("llama", {f"llama.{key}": each for key, each in keys.items()})
