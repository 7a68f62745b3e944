"""Files of ours and compressed-tensors' directories."""

import json

import pytest
import torch
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
    with pytest.raises(FileError, match="no quantization arguments"):
        entries(tmp_path / "out")
