"""torchao's metadata: what is said of a tensor, and what is wrong with it."""

import json

import pytest
import torch
from safetensors.torch import save_file

import blockscale as bs

STORED = {"0._weight_qdata": torch.zeros(4, 8, dtype=torch.int8), "0._weight_scale": torch.ones(4)}
TOLD = {"_type": "Int8Tensor", "_data": {}, "_tensor_data_names": ["qdata", "scale"]}


def files(path, text, stored=STORED):
    metadata = {"0.weight": text, "tensor_names": '["0.weight"]'}
    save_file(stored, path / "m.safetensors", metadata)
    return path / "m.safetensors"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"_type": "Int8Tensor"', "is not JSON"),
        ('{"_type": "Int8Tensor", "_data": ' + "[" * 200 + "]" * 200 + "}", "is too deep"),
        (json.dumps(TOLD | {"_data": None}), "has no _data"),
        (json.dumps(TOLD | {"_tensor_data_names": "qdata"}), "has no _data"),
        (json.dumps(TOLD | {"_tensor_data_names": ["qdata", "scale", "zero_point"]}),
         "0._weight_zero_point is missing, though the metadata"),
    ],
)  # fmt: skip
def test_damaged(text, reason, tmp_path):
    with pytest.raises(bs.FileError, match=reason):
        bs.checkpoint(files(tmp_path, text))


def test_plain_tensors_and_files_without_metadata(tmp_path):
    path = files(tmp_path, '{"_type": "torch.Tensor"}', {"0.weight": torch.ones(3)})
    assert bs.checkpoint(path).producer == "safetensors"
    save_file(STORED, tmp_path / "m.safetensors")
    with bs.checkpoint(tmp_path / "m.safetensors") as model:  # as before there were layouts
        assert model.producer == "scaled codes"
        assert str(model["0.weight"].format) == "int8:channel0:fp32:full"
