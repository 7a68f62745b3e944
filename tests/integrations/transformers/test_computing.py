"""Weights that layers compute of parts, while a model is read."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

import blockscale as bs
from blockscale.integrations.transformers import BlockscaleConfig
from tests.support.quantized_models import quantized, quietly
from tests.support.transformers_models import same_bits

Checkpoints = Callable[[str], tuple[type, Path]]
CONV = "hubert.encoder.pos_conv_embed.conv"
PARTS = f"{CONV}.parametrizations.weight.original"


def changed(path: Path, to: Path, name: Callable[[str], str | None]) -> Path:
    """A checkpoint with other names; None leaves a tensor out."""
    to.mkdir()
    tensors = load_file(path / "model.safetensors")
    kept = {new: tensor for old, tensor in tensors.items() if (new := name(old)) is not None}
    save_file(kept, to / "model.safetensors", {"format": "pt"})
    (to / "config.json").write_bytes((path / "config.json").read_bytes())
    return to


def older(name: str) -> str:
    return name.replace("parametrizations.weight.original0", "weight_g").replace(
        "parametrizations.weight.original1", "weight_v"
    )


@pytest.mark.parametrize("name", [older, lambda name: name.removeprefix("hubert.")], ids=["g", ""])
def test_other_names(name: Any, checkpoints: Checkpoints, tmp_path: Path) -> None:
    """As older checkpoints have them, and as the base model's."""
    _, path = checkpoints("hubert")
    path = changed(path, tmp_path / "other", name)
    expected = quantized(hf.HubertForCTC, path)
    config = BlockscaleConfig("mxfp4")
    found = hf.HubertForCTC.from_pretrained(path, quantization_config=config)
    assert found.get_submodule(CONV).weight.fmt is not None
    same_bits(expected, found)
    assert str(found.hf_quantizer.ledger[CONV]) == str(bs.quantize_(
        hf.HubertForCTC.from_pretrained(path), "mxfp4")[CONV])  # fmt: skip
    found.save_pretrained(tmp_path / "out")
    same_bits(expected, hf.HubertForCTC.from_pretrained(tmp_path / "out"))
    quietly(lambda: bs.quantize_directory(path, tmp_path / "directory", "mxfp4"))
    same_bits(expected, hf.HubertForCTC.from_pretrained(tmp_path / "directory"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_dtypes(dtype: torch.dtype, checkpoints: Checkpoints) -> None:
    kind, path = checkpoints("encodec")
    loader: Any = kind
    expected = loader.from_pretrained(path, dtype=dtype)
    bs.quantize_(expected, "int8")
    config = BlockscaleConfig("int8")
    found = loader.from_pretrained(path, dtype=dtype, quantization_config=config)
    same_bits(expected, found)


def test_what_is_skipped_goes_on_computing(checkpoints: Checkpoints, tmp_path: Path) -> None:
    kind, path = checkpoints("hubert")
    loader: Any = kind
    recipe = bs.Recipe("mxfp4", skip=["*.pos_conv_embed"])
    found = loader.from_pretrained(path, quantization_config=BlockscaleConfig(recipe))
    expected = loader.from_pretrained(path)
    assert f"{PARTS}1" in found.state_dict()
    assert torch.equal(found.get_submodule(CONV).weight, expected.get_submodule(CONV).weight)
    found.save_pretrained(tmp_path / "out")
    same_bits(found, loader.from_pretrained(tmp_path / "out"))


def test_a_part_that_is_missing(
    checkpoints: Checkpoints, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """transformers tells of it, as of any weight, and initializes it."""
    kind, path = checkpoints("hubert")
    loader: Any = kind
    path = changed(path, tmp_path / "less", lambda name: None if name == f"{PARTS}0" else name)
    config = BlockscaleConfig("mxfp4")
    options = {"quantization_config": config, "output_loading_info": True}
    found, told = loader.from_pretrained(path, **options)
    assert set(told["missing_keys"]) == {f"{CONV}.weight"}
    assert found.get_submodule(CONV).weight.isfinite().all()
    assert not re.search("Traceback", capfd.readouterr().err)
