# SPDX-License-Identifier: BSD-3-Clause
"""Names of one program become those of another, or it is said which do not."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import blockscale as bs
from blockscale.core.joined_weights import disagreement_text
from blockscale.export.conversion.source import source_of
from tests.support.conversion_models import CONFIG, tensors, write
from tests.support.file_models import write_model

FMT = "int8:group32:fp16:full"


def test_names_that_are_not_known(tmp_path: Path) -> None:
    held = tensors(FMT) | {"model.vision.weight": torch.ones(3)}
    with bs.checkpoint(write(tmp_path / "m", held)) as opened:
        with pytest.raises(ValueError, match=r"'model.vision.weight' have no known name"):
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


# Layers that servers join keep one outer scale, or nothing is written.

INV = "e2m1:group16:e4m3/inv"
NAMES = [f"model.layers.0.self_attn.{name}_proj.weight" for name in "qkvo"]


def source(path: Path, fmt: str = INV, *, fused: bool) -> Path:
    torch.manual_seed(0)
    tensors = {
        name: torch.randn(16, 64) * size for name, size in zip(NAMES, (1, 7, 0.1, 1), strict=True)
    }
    model = write_model(path / "float", tensors)
    bs.quantize_directory(model, path / "source", bs.Recipe(fmt, fused=fused))
    return path / "source"


def globals_of(path: Path) -> list[float]:
    held = load_file(path / "model.safetensors")
    return [float(held[f"{n}_global_scale"]) for n in NAMES]


def test_those_that_share_it_are_carried(tmp_path: Path) -> None:
    done = bs.export.convert_checkpoint(
        source(tmp_path, fused=True), tmp_path / "out", "compressed-tensors"
    )
    q, k, v, o = globals_of(tmp_path / "out")
    assert done.lossless and q == k == v != o


def test_those_that_disagree_are_refused(tmp_path: Path) -> None:
    path = source(tmp_path, fused=False)
    with pytest.raises(
        ValueError, match=r"k_proj, q_proj, v_proj of model.layers.0.self_attn have"
    ):
        bs.export.convert_checkpoint(path, tmp_path / "out", "compressed-tensors")
    assert not (tmp_path / "out").exists()
    other = bs.export.convert_checkpoint(path, tmp_path / "ours", "blockscale")
    assert other.lossless  # whose reader joins nothing


def test_quantized_again_they_share_it(tmp_path: Path) -> None:
    path = source(tmp_path, fused=False)
    done = bs.export.convert_checkpoint(
        path, tmp_path / "out", "compressed-tensors", requantize=INV
    )
    q, k, v, _ = globals_of(tmp_path / "out")
    assert q == k == v and len(done.of("requantized")) == 3
    assert all("have the outer scales" in each.notes[0] for each in done.of("requantized"))
    with bs.checkpoint(path) as opened:
        floats = torch.cat([opened[name].dequantize() for name in NAMES[:3]])
    whole = bs.quantize(floats, INV)
    held = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(torch.cat([held[f"{n}_packed"] for n in NAMES[:3]]), whole.packed)


def test_other_formats_quantized_again_share_it_too(tmp_path: Path) -> None:
    """Also where each by itself could not be carried."""
    path = source(tmp_path, "nf4:group64:fp32", fused=True)
    bs.export.convert_checkpoint(path, tmp_path / "out", "compressed-tensors", requantize=INV)
    q, k, v, o = globals_of(tmp_path / "out")
    assert q == k == v != o


def test_words() -> None:
    told = disagreement_text({"a.q_proj": torch.ones(1, 1), "a.k_proj": None})
    assert told.startswith(
        "q_proj, k_proj of a have the outer scales 1, not chosen yet, and servers"
    )
    assert "fused=False" in told
