"""What a directory's configuration says about its quantized weights."""

import json

import pytest
import torch
from safetensors.torch import save_file

from blockscale.export.checkpoints.configuration import read_configuration
from blockscale.files.metadata import FileError

GPTQ = {"bits": 4, "group_size": 128, "desc_act": False}


@pytest.mark.parametrize(
    ("name", "content", "method"),
    [
        ("config.json", {"quantization_config": {"quant_method": "gptq"} | GPTQ}, "gptq"),
        ("config.json", {"text_config": {"quantization_config": {"quant_method": "awq"}}}, "awq"),
        ("config.json", {"quantization": {"group_size": 64, "bits": 4}}, "mlx"),
        ("config.json", {"quantization_config": {"group_size": 64, "bits": 4}}, "mlx"),
        ("quantize_config.json", GPTQ, "gptq"),
        ("quant_config.json", {"w_bit": 4, "q_group_size": 128}, "awq"),
        ("hf_quant_config.json", {"quantization": {"quant_algo": "NVFP4"}}, "modelopt"),
        ("quanto_qmap.json", {"a": {"weights": "qint4"}}, "quanto"),
        ("config.json", {"hidden_size": 4}, None),
    ],
)
def test_methods(name, content, method, tmp_path):
    (tmp_path / name).write_text(json.dumps(content))
    found = read_configuration(tmp_path)
    assert found.get("quant_method") == method
    assert found["evidence"].startswith(name) == (method is not None)
    assert found["model"] == (content if name == "config.json" else {})
    assert read_configuration(tmp_path / "model.safetensors") == found  # a file: its folder's


def test_pieces(tmp_path):
    (tmp_path / "quanto_qmap.json").write_text('{"a": {"weights": "qint4"}}')
    assert read_configuration(tmp_path)["modules"] == {"a": {"weights": "qint4"}}
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
    assert read_configuration(tmp_path)["quant_algo"] == "FP8"
    save_file({"x": torch.ones(2)}, tmp_path / "a.safetensors", {"tensor_names": '["w"]'})
    found = read_configuration(tmp_path, [tmp_path / "a.safetensors"])
    assert found["safetensors_metadata"] == {"tensor_names": '["w"]'}


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("config.json", "[]", "holds a list, expected a JSON object"),
        ("config.json", '{"quantization_config": 3}', "quantization_config is no JSON object"),
        ("quantize_config.json", "{", "is not JSON"),
        ("quanto_qmap.json", '{"a": 1, "a": 2}', "is there twice"),
    ],
)
def test_damaged(name, text, told, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(FileError, match=told):
        read_configuration(tmp_path)
