# SPDX-License-Identifier: BSD-3-Clause
"""Names of one program become those of another, or it is said which do not."""

from pathlib import Path

import pytest
import torch

import blockscale as bs
from blockscale.export.conversion.source import source_of
from tests.support.conversion_models import CONFIG, tensors, write

FMT = "int8:group32:fp16:full"


def test_names_that_are_not_known(tmp_path: Path) -> None:
    held = tensors(FMT) | {"model.vision.weight": torch.ones(3)}
    with bs.checkpoint(write(tmp_path / "m", held)) as opened:
        with pytest.raises(ValueError, match=r"'model\.vision\.weight' have no name in"):
            source_of(opened, True, "auto", None)
        assert "model.vision.weight" in source_of(opened, True, "keep", None).view


def test_models_that_are_not_known(tmp_path: Path) -> None:
    source = write(tmp_path / "m", tensors(FMT), config=CONFIG | {"model_type": "gemma3"})
    with bs.checkpoint(source) as opened, pytest.raises(ValueError, match="model_type 'gemma3'"):
        source_of(opened, True, "auto", None)
    (source / "config.json").unlink()
    with bs.checkpoint(source) as opened, pytest.raises(ValueError, match="model_type None"):
        source_of(opened, True, "auto", None)


def test_what_readers_compute_is_left_out(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    with bs.checkpoint(write(tmp_path / "m", tensors(FMT) | {name: torch.ones(3)})) as opened:
        found = source_of(opened, True, "auto", None)
    assert found.left_out == {name: "readers compute it"} and name not in found.view


def test_a_config_of_another_place(tmp_path: Path) -> None:
    """rope_freqs needs the original config.json."""
    held = tensors(FMT)
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "rope_theta": 5e5,
              "high_freq_factor": 4.0, "original_max_position_embeddings": 64}  # fmt: skip
    source = write(tmp_path / "m", held, config=CONFIG | {"rope_scaling": llama3})
    bs.export.convert_checkpoint(source, tmp_path / "m.gguf", "gguf")
    with bs.checkpoint(tmp_path / "m.gguf") as opened:
        assert opened["rope_freqs.weight"].shape == (32,)
        with pytest.raises(ValueError, match=r"rope_freqs.weight scales the positions"):
            source_of(opened, False, "auto", None)
        found = source_of(opened, False, "auto", source)
    assert found.config["rope_scaling"] == llama3 and "rope_freqs.weight" in found.left_out
