# SPDX-License-Identifier: BSD-3-Clause
"""Scaled positions as a GGUF file's keys, and back; what neither has is refused by name."""

from typing import Any

import pytest

from blockscale.export.writers.gguf_files.positions import kind_of, rope, scaling_keys, scaling_of

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
        ({"rope_type": "dynamic"}, "scaled by 'dynamic'.*only default, llama3, linear, yarn are"),
        (YARN | {"beta_fast": 16}, "yarn's beta_fast is '16', and only positions with its default"),
        (YARN | {"attention_factor": 1.0}, "yarn's attention_factor is '1.0'"),
        (YARN | {"truncate": False}, "yarn's truncate is 'False'"),
        ({"rope_type": "linear"}, "the factor of rotary positions is 'None', expected a number"),
        ({"rope_type": "linear", "factor": "8"}, "is '8', expected a number from 1 on"),
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
        ({"rope.scaling.type": "su"}, "scaling.type = 'su' and .*which is not translated"),
        (
            {"rope.scaling.type": "yarn", "rope.scale_linear": 2.0},
            "not translated: give the config",
        ),
        (
            {"rope.scaling.type": "none", "rope.scale_linear": 2.0},
            "not translated: give the config",
        ),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": True}, "scaling.factor is 'True'"),
        (
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.yarn_ext": 1.0},
            "scaling.'yarn_ext', which is not translated",
        ),
        ({"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}, "context_length is 'None'"),
    ],
)
def test_keys_without_a_setting(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        scaling_of("llama", {f"llama.{key}": each for key, each in keys.items()})
