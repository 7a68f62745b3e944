"""Directories of others whose joined layers disagree."""

import json
import pathlib

import pytest
import torch
from safetensors.torch import save_file

import blockscale as bs

LAYERS = [f"model.layers.0.self_attn.{name}_proj" for name in "qkvo"]


def directory(path: pathlib.Path, producer: str, numbers: list[float]) -> pathlib.Path:
    """As compressed-tensors and ModelOpt store NVFP4, under these scales of scales."""
    path.mkdir()
    tensors = {}
    for layer, number in zip(LAYERS, numbers, strict=True):
        codes, scale = torch.zeros(4, 16, dtype=torch.uint8), torch.ones(4, 2)
        tensors[f"{layer}.weight_scale"] = scale.to(torch.float8_e4m3fn)
        if producer == "compressed-tensors":
            tensors[f"{layer}.weight_packed"] = codes
            tensors[f"{layer}.weight_global_scale"] = torch.tensor([number])
        else:
            tensors[f"{layer}.weight"] = codes
            tensors[f"{layer}.weight_scale_2"] = torch.tensor(number)
            tensors[f"{layer}.input_scale"] = torch.tensor(number)
    save_file(tensors, path / "model.safetensors")
    weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    config: dict[str, object] = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    if producer == "compressed-tensors":
        groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
        config = {
            "quant_method": producer,
            "format": "nvfp4-pack-quantized",
            "config_groups": groups,
        }
    if producer == "hf_quant_config":
        told = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}
        (path / "hf_quant_config.json").write_text(json.dumps(told))
        config = {}
    (path / "config.json").write_text(json.dumps({"quantization_config": config} if config else {}))
    return path


@pytest.mark.parametrize("producer", ["compressed-tensors", "modelopt", "hf_quant_config"])
def test_layers_that_disagree_have_a_note(producer: str, tmp_path: pathlib.Path) -> None:
    found = bs.export.audit(directory(tmp_path / "m", producer, [2.0, 3.0, 2.0, 9.0]))
    part = "weight_global_scale" if producer == "compressed-tensors" else "weight_scale_2"
    [note] = found[LAYERS[1]].notes
    assert f"its {part} is 3, beside q_proj 2, v_proj 2: servers that join" in note
    assert ("input_scale is 3" in note) == (producer != "compressed-tensors")
    assert len(found[LAYERS[0]].notes) == 1 and not found[LAYERS[3]].notes
    assert found[LAYERS[3]].status == "quantized" and found[LAYERS[3]].elements == 128


@pytest.mark.parametrize("producer", ["compressed-tensors", "modelopt"])
def test_layers_that_agree_have_none(producer: str, tmp_path: pathlib.Path) -> None:
    found = bs.export.audit(directory(tmp_path / "m", producer, [2.0, 2.0, 2.0, 9.0]))
    assert len(found.quantized) == 4 and not any(entry.notes for entry in found)
