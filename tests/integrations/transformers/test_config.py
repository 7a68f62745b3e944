# SPDX-License-Identifier: BSD-3-Clause
"""BlockscaleConfig: what it takes, and to and from JSON."""

import json
from pathlib import Path
from typing import Any

import pytest

import blockscale as bs
from blockscale.integrations.transformers import BlockscaleConfig

RECIPE = bs.Recipe("mxfp4", rules={"lm_head": "int8"}, skip=["*.q_proj"])


@pytest.mark.parametrize(
    "given", [RECIPE, RECIPE.to_dict(), RECIPE.to_json(), "mxfp4", bs.parse("mxfp4")], ids=repr
)
def test_there_and_back(given: Any) -> None:
    config = BlockscaleConfig(given, strict=True, seed=3)
    data = json.loads(json.dumps(config.to_dict()))
    back = BlockscaleConfig.from_dict(data)
    assert back == config
    assert hash(back) == hash(config)
    assert back.recipe == bs.Recipe.read(given)
    assert (back.strict, back.seed, back.quant_method) == (True, 3, "blockscale")
    assert "mxfp4" in repr(back) or "e2m1" in repr(back)
    assert BlockscaleConfig(given) != config


def test_a_file(tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text(RECIPE.to_json())
    assert BlockscaleConfig(tmp_path / "recipe.json").recipe == RECIPE


def test_unused_arguments_come_back() -> None:
    config, rest = BlockscaleConfig.from_dict({"recipe": "int8"}, return_unused_kwargs=True, a=1)
    assert (config, rest) == (BlockscaleConfig("int8"), {"a": 1})


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"recipe": "mxfp5"}, "mxfp5"),
        ({"recipe": "mxfp4", "bits": 4}, "unknown key 'bits'"),
        ({"recipe": "mxfp4", "version": 99}, "install a newer blockscale"),
        ({"quant_method": "gptq", "recipe": "mxfp4"}, "'gptq'"),
        ({}, "no recipe"),
    ],
)
def test_refused(data: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        BlockscaleConfig.from_dict(data)
