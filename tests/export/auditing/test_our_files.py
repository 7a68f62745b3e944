# SPDX-License-Identifier: BSD-3-Clause
"""Files of ours and compressed-tensors' directories."""

import json
import pathlib

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import blockscale as bs
from blockscale.export.auditing.our_files import entries
from blockscale.files.metadata import FileError


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 64))


def test_a_file_of_ours(tmp_path):
    model = small()
    ledger = bs.quantize_(model, bs.Recipe("int4", "int8_token", skip=["2"]))
    bs.save(model, tmp_path / "model.safetensors")
    found = bs.export.audit(tmp_path / "model.safetensors", ledger)
    assert found["0"].weight == "int4:group128:fp32" and found["0"].input == "int8:token:fp32"
    assert found["0"].bytes_after == model[0].weight.nbytes
    assert found["2.weight"].reason == "float32 in the file" and not found.skipped
    size = (tmp_path / "model.safetensors").stat().st_size
    assert 0.95 < found.bytes_after / size <= 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fmt", ["int4", "int8_channel", "fp8", "mxfp4", "nvfp4"])
def test_compressed_tensors(tmp_path, fmt):
    model = small()
    ledger = bs.quantize_(model, bs.Recipe(fmt, skip=["2"]))
    bs.export.compressed_tensors(model, tmp_path / "out")
    found = bs.export.audit(tmp_path / "out", ledger)
    assert not found.skipped
    assert found["0"].status == "quantized" and found["0"].elements == 256 * 128
    assert found["2.weight"].status == "kept"
    size = (tmp_path / "out" / "model.safetensors").stat().st_size
    assert 0.95 < found.bytes_after / size <= 1


def test_a_float_file_beside_a_ledger(tmp_path):
    from safetensors.torch import save_file

    model = small()
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    ledger = bs.quantize_(model, "int4")
    found = bs.export.audit(tmp_path / "model.safetensors", ledger)
    assert [entry.name for entry in found.skipped] == ["0.weight", "2.weight"]


def test_configs_that_are_none(tmp_path):
    model = small()
    bs.quantize_(model, "int4")
    bs.export.compressed_tensors(model, tmp_path / "out")
    config = tmp_path / "out" / "config.json"
    held = json.loads(config.read_text())
    config.write_text("[")
    with pytest.raises(FileError, match="is not JSON"):
        entries(tmp_path / "out")
    held["quantization_config"]["config_groups"] = 3
    config.write_text(json.dumps(held))
    with pytest.raises(FileError, match="bad quantization arguments"):
        entries(tmp_path / "out")


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
