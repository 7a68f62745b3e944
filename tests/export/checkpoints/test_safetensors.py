# SPDX-License-Identifier: BSD-3-Clause
"""safetensors files as checkpoints: ours with their bits, others' with their own codes."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import blockscale as bs
from blockscale.export.checkpoints.safetensors import read_configuration
from blockscale.files.metadata import FileError
from blockscale.files.slabs import rows
from blockscale.files.stream import Reader


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))


@pytest.mark.parametrize("fmt", ["int8_channel", "nvfp4", "uint4:group32:fp16:offset", "mxfp4"])
def test_ours(fmt: str, tmp_path: Path) -> None:
    quantized = model()
    bs.quantize_(quantized, bs.Recipe(fmt, bias="int32" if fmt == "int8" else None))
    bs.save(quantized, tmp_path / "m.safetensors")
    with bs.checkpoint(tmp_path / "m.safetensors") as found:
        q = found["0.weight"]
        assert isinstance(q, bs.QTensor) and q.format == bs.parse(fmt)
        assert found.stored["0.weight"].format == str(bs.parse(fmt))
        assert found.stored["0.weight"].nbytes == q.nbytes
        assert torch.equal(q.dequantize(), quantized[0].qweight.tensor.dequantize())
        assert isinstance(found["0.bias"], torch.Tensor)
        assert set(found) == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_each_shard_is_opened_once_for_all_of_its_tensors(tmp_path: Path, monkeypatch) -> None:
    tensors = {f"{i}.weight": torch.full((4, 4), float(i)) for i in range(6)}
    for first in (0, 3):
        part = {name: tensors[name] for name in list(tensors)[first : first + 3]}
        save_file(part, tmp_path / f"model-{first}.safetensors")
    opens: list[str] = []
    closes: list[str] = []

    class Counted(Reader):
        def __init__(self, path: Path):
            super().__init__(path)
            opens.append(path.name)

        def close(self) -> None:
            super().close()
            closes.append(self.path.name)

    with bs.checkpoint(tmp_path) as found:
        monkeypatch.setattr(rows, "Reader", Counted)
        for _ in range(2):
            assert all(torch.equal(found[name], each) for name, each in tensors.items())
        assert opens == ["model-0.safetensors", "model-3.safetensors"] and not closes
    assert sorted(closes) == opens
    assert torch.equal(found["5.weight"], tensors["5.weight"])  # opened again
    del found  # what nobody closes is closed
    assert len(opens) == len(closes) == 3


def test_a_bias_of_integers(tmp_path: Path) -> None:
    quantized = model()
    recipe = bs.Recipe("int8_channel", "int8", bias="int32")
    bs.calibrate(quantized, [torch.randn(4, 64)], recipe, progress=False)
    bs.save(quantized, tmp_path / "m.safetensors")
    with bs.checkpoint(tmp_path / "m.safetensors") as found:
        assert torch.equal(found["0.bias"], quantized[0].bias)


def test_tiles_of_float8(tmp_path: Path) -> None:
    """DeepSeek's: `weight_scale_inv` multiplies, and the last tiles are partial."""
    codes = torch.randn(200, 300).to(torch.float8_e4m3fn)
    scale = torch.rand(2, 3)
    save_file({"a.weight": codes, "a.weight_scale_inv": scale}, tmp_path / "m.safetensors")
    with bs.checkpoint(tmp_path) as found:
        assert set(found) == {"a.weight"}
        q = found["a.weight"]
    expected = (
        codes.float() * scale.repeat_interleave(128, 0)[:200].repeat_interleave(128, 1)[:, :300]
    )
    assert isinstance(q, bs.QTensor) and str(q.format) == "e4m3:tile128x128:fp32"
    assert torch.equal(q.dequantize(), expected)


def test_integers_with_zero_points(tmp_path: Path) -> None:
    codes = torch.randint(-128, 128, (6, 40), dtype=torch.int8)
    scale, zero = torch.rand(6, 1).bfloat16(), torch.randint(-9, 9, (6, 1), dtype=torch.int8)
    tensors = {"a.weight": codes, "a.weight_scale": scale, "a.weight_zero_point": zero}
    save_file(tensors, tmp_path / "m.safetensors")
    with bs.checkpoint(tmp_path) as found:
        q = found["a.weight"]
    assert isinstance(q, bs.QTensor)
    assert torch.equal(q.dequantize(), (codes.float() - zero.float()) * scale.float())
    assert torch.equal(q.codes, codes)


def test_packed_by_others(tmp_path: Path) -> None:
    tensors = {
        "a.qweight": torch.zeros(8, 16, dtype=torch.int32), "a.scales": torch.ones(1, 16),
        "norm": torch.ones(3),
    }  # fmt: skip
    save_file(tensors, tmp_path / "m.safetensors")
    with bs.checkpoint(tmp_path) as found:
        assert set(found) == {"a.weight", "norm"}
        assert "GPTQ or AWQ" in found.stored["a.weight"].unread
        with pytest.raises(bs.FileError, match="GPTQ or AWQ"):
            found["a.weight"]
        assert torch.equal(found["norm"], torch.ones(3))


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
        ("config.json", '{"quantization_config": 3}', "quantization_config is not a JSON object"),
        ("quantize_config.json", "{", "is not JSON"),
        ("quanto_qmap.json", '{"a": 1, "a": 2}', "appears twice"),
    ],
)
def test_damaged(name, text, told, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(FileError, match=told):
        read_configuration(tmp_path)
