# SPDX-License-Identifier: BSD-3-Clause
"""What the configs of all libraries share; tests/integrations/*/test_config.py have the rest."""

import pytest

import blockscale as bs
from blockscale.integrations.config import RecipeConfig, with_method


def test_method_is_quant_method() -> None:
    ours = RecipeConfig("int8")
    assert with_method(ours.to_dict()) == {"quant_method": "blockscale", **ours.to_dict()}
    assert with_method(other := {"quant_method": "gptq"}) is other
    assert with_method(ours) is ours


def test_there_and_back() -> None:
    config = RecipeConfig("int8", strict=True, seed=3)
    assert RecipeConfig.from_dict(config.to_dict()) == config != RecipeConfig("int8")
    assert hash(config) == hash(RecipeConfig.from_dict(config.to_dict()))
    with pytest.raises(
        ValueError, match="quantization_config has quant_method 'gptq', expected 'blockscale'"
    ):
        RecipeConfig.from_dict({"quant_method": "gptq"})
    with pytest.raises(bs.FileError, match="install a newer blockscale"):
        RecipeConfig.from_dict(config.to_dict() | {"version": "99"})
