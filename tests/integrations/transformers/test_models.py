# SPDX-License-Identifier: BSD-3-Clause
"""Every tiny model: quantized while it loads, saved, and loaded again, in the bits of quantize_."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.integrations.transformers import BlockscaleConfig
from tests.support.quantized_models import quantized, quietly
from tests.support.transformers_models import MODELS, same_bits

Checkpoints = Callable[[str], tuple[type, Path]]
NAMES = [make.__name__ for make in MODELS]


@pytest.mark.slow
@pytest.mark.some(40)
@pytest.mark.parametrize("name", NAMES)
def test_bits_are_those_of_quantize(name: str, checkpoints: Checkpoints, tmp_path: Path) -> None:
    kind, path = checkpoints(name)
    loader: Any = kind
    expected = quantized(kind, path)
    config = BlockscaleConfig("mxfp4")
    found = quietly(lambda: loader.from_pretrained(path, quantization_config=config))
    same_bits(expected, found)
    assert found.hf_quantizer.ledger.quantized
    found.save_pretrained(tmp_path / "while loading")
    same_bits(expected, loader.from_pretrained(tmp_path / "while loading"))
    expected.save_pretrained(tmp_path / "quantize_")  # type: ignore[operator]
    same_bits(expected, loader.from_pretrained(tmp_path / "quantize_"))


@pytest.mark.slow
@pytest.mark.some(6)
@pytest.mark.parametrize(
    "name", ["llama", "tied_llama", "gpt2", "bert", "t5", "llava", "mixtral", "hubert", "encodec"]
)
def test_directories_of_the_command(name: str, checkpoints: Checkpoints, tmp_path: Path) -> None:
    kind, path = checkpoints(name)
    loader: Any = kind
    skip = ["*.gate", "*router*"]
    recipe = bs.Recipe("mxfp4", skip=skip if name == "mixtral" else [])
    quietly(lambda: bs.quantize_directory(path, tmp_path / "out", recipe))
    expected: nn.Module = loader.from_pretrained(path)
    quietly(lambda: bs.quantize_(expected, recipe))
    same_bits(expected, loader.from_pretrained(tmp_path / "out"))


@pytest.mark.slow
@pytest.mark.some(3)
@pytest.mark.parametrize("recipe", ["int8", "nvfp4", "int8_channel", "int4", "mxfp8"])
def test_recipes(recipe: str, checkpoints: Checkpoints, tmp_path: Path) -> None:
    kind, path = checkpoints("tied_llama")
    loader: Any = kind
    expected = quantized(kind, path, recipe)
    found = loader.from_pretrained(path, quantization_config=BlockscaleConfig(recipe))
    same_bits(expected, found)
    found.save_pretrained(tmp_path / "out", max_shard_size="4KB")
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 3
    same_bits(expected, loader.from_pretrained(tmp_path / "out"))
    x = torch.arange(6)[None]
    options = {"max_new_tokens": 3, "do_sample": False}
    assert torch.equal(expected(x).logits, found(x).logits)
    assert torch.equal(expected.generate(x, **options), found.generate(x, **options))  # type: ignore[operator]


@pytest.mark.slow
def test_fused_experts_keep_the_scales_of_their_parts(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    """An expert's two matrices have outer scales of their own; the codes are those of bs.load."""
    kind, path = checkpoints("mixtral")
    loader: Any = kind
    recipe = bs.Recipe("nvfp4", skip=["*.gate"], fused=False)
    quietly(lambda: bs.quantize_directory(path, tmp_path / "out", recipe))
    model = loader.from_pretrained(tmp_path / "out")
    assert "model.layers.0.mlp.experts.gate_up_proj.codes" in model.state_dict()
    same_bits(model, bs.load(kind(model.config), tmp_path / "out"))
    model.save_pretrained(tmp_path / "again")
    same_bits(model, loader.from_pretrained(tmp_path / "again"))
