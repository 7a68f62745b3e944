# SPDX-License-Identifier: BSD-3-Clause
"""BlockscaleConfig of diffusers: to and from JSON."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import blockscale as bs
from tests.integrations.diffusers_models import DIFFUSERS, same_bits, unet

pytestmark = DIFFUSERS


def test_there_and_back() -> None:
    from blockscale.integrations.diffusers import BlockscaleConfig

    config = BlockscaleConfig("mxfp4", strict=True, seed=3)
    data = json.loads(json.dumps(config.to_dict()))
    assert BlockscaleConfig.from_dict(data) == config
    assert "mxfp4" in repr(config) or "e2m1" in repr(config)


def config(*args: Any, **kwargs: Any) -> Any:
    from blockscale.integrations.diffusers import BlockscaleConfig

    return BlockscaleConfig(*args, **kwargs)


@pytest.mark.slow
@pytest.mark.some(12)
@pytest.mark.parametrize("recipe", ["mxfp4", "int8"])
@pytest.mark.parametrize("options", [{}, {"device_map": {"": "cpu"}},
                                     {"torch_dtype": torch.bfloat16}], ids=str)  # fmt: skip
def test_bits_are_those_of_quantize(recipe: str, options: dict[str, Any], tmp_path: Path) -> None:
    unet().save_pretrained(tmp_path / "float")
    kind = type(unet())
    expected = kind.from_pretrained(tmp_path / "float", **options)
    ledger = bs.quantize_(expected, recipe)
    found = kind.from_pretrained(tmp_path / "float", quantization_config=config(recipe), **options)
    same_bits(expected, found)
    assert str(found.hf_quantizer.ledger) == str(ledger)
    found.save_pretrained(tmp_path / "out", max_shard_size="50KB")
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 1
    same_bits(expected, kind.from_pretrained(tmp_path / "out", **options))
    if "torch_dtype" not in options:  # else the command quantizes what is stored, in float32
        bs.quantize_directory(tmp_path / "float", tmp_path / "directory", recipe)
        same_bits(expected, kind.from_pretrained(tmp_path / "directory", **options))


def test_a_directory_in_shards(tmp_path: Path) -> None:
    """The command writes other names into the same files; their index is diffusers'."""
    model = unet()
    model.save_pretrained(tmp_path / "float", max_shard_size="100KB")
    bs.quantize_directory(tmp_path / "float", tmp_path / "directory", "mxfp4")
    bs.quantize_(model, "mxfp4")
    same_bits(model, type(model).from_pretrained(tmp_path / "directory"))


def test_refusals(tmp_path: Path) -> None:
    kind = type(unet())
    unet().save_pretrained(tmp_path / "float")
    found = kind.from_pretrained(tmp_path / "float", quantization_config=config("mxfp4"))
    with pytest.raises(ValueError, match="safe_serialization=True"):
        found.save_pretrained(tmp_path / "bin", safe_serialization=False)
    with pytest.raises(bs.SkippedError, match="matches nothing"):
        kind.from_pretrained(
            tmp_path / "float",
            quantization_config=config(bs.Recipe("mxfp4", rules={"no": "int8"}), strict=True),
        )
    with pytest.raises(ValueError, match="device_map names 2 devices"):
        kind.from_pretrained(
            tmp_path / "float", quantization_config=config("mxfp4"),
            device_map={"down_blocks": "cpu", "": "disk"},
        )  # fmt: skip
    found.save_pretrained(tmp_path / "out")
    text = json.loads((tmp_path / "out" / "config.json").read_text())
    assert text["quantization_config"]["method"] == "blockscale"
    assert "quant_method" not in text["quantization_config"]
    del text["quantization_config"]
    (tmp_path / "out" / "config.json").write_text(json.dumps(text))
    with pytest.raises(bs.FileError, match="has no quantization_config"):
        kind.from_pretrained(tmp_path / "out", quantization_config=config("mxfp4"))
    assert any(name.endswith(".codes") for name in load_file(
        tmp_path / "out" / "diffusion_pytorch_model.safetensors"))  # fmt: skip


def test_both_spellings_of_the_method() -> None:
    from diffusers.quantizers.auto import AUTO_QUANTIZER_MAPPING, DiffusersAutoQuantizer

    from blockscale.integrations.diffusers import BlockscaleConfig, BlockscaleQuantizer, register

    register()
    assert AUTO_QUANTIZER_MAPPING["blockscale"] is BlockscaleQuantizer
    told = BlockscaleConfig("mxfp4").to_dict()
    for config in (told, {"quant_method": "blockscale", "recipe": told["recipe"]}):
        found = DiffusersAutoQuantizer.from_config(config, pre_quantized=False)
        assert found.quantization_config == BlockscaleConfig("mxfp4")
    assert BlockscaleConfig("mxfp4").quant_method.value == "blockscale"
    with pytest.raises(ValueError, match="no `quant_method`"):
        DiffusersAutoQuantizer.from_dict({"recipe": "mxfp4"})


@pytest.mark.slow
def test_quantized_in_memory(tmp_path: Path) -> None:
    model = unet()
    bs.quantize_(model, "mxfp4")
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    same_bits(model, again)
    x = torch.randn(1, 1, 8, 8)
    assert torch.equal(model.eval()(x, 1).sample, again(x, 1).sample)
    again.save_pretrained(tmp_path / "again")
    same_bits(model, type(model).from_pretrained(tmp_path / "again"))


def test_its_models_and_no_others() -> None:
    inner = unet()
    outer = torch.nn.Sequential(torch.nn.Linear(32, 8), inner)
    bs.quantize_(outer, bs.Recipe("mxfp4", skip=["0"]))
    assert inner.hf_quantizer.quantization_config.recipe == bs.Recipe("mxfp4", skip=["0"])
    assert not hasattr(outer, "hf_quantizer")
    plain = unet()
    bs.quantize_(torch.nn.Sequential(torch.nn.Linear(32, 8), plain), bs.Recipe("mxfp4", skip=["1"]))
    assert not hasattr(plain, "hf_quantizer")
