# SPDX-License-Identifier: BSD-3-Clause
"""A model's directory: weights, config, files to be copied, and what is no model."""

import json
import os

import pytest
import torch
from safetensors.torch import save_file

from blockscale.files.directory.quantize_directory import quantize_directory
from blockscale.files.metadata import FileError
from tests.files.directory.places import changed
from tests.support.file_models import contents, tiny_tensors, write_model


def test_other_files(tmp_path):
    model = write_model(tmp_path / "model", tiny_tensors())
    kept = {
        "vocab.txt": b"a\nb", "1_Pooling/config.json": b"{}", "2_Dense/model.safetensors": b"any",
        ".gitattributes": b"*", "code.py": b"x = 1", "optimizer.pt": b"o", "empty": b"",
    }  # fmt: skip
    dropped = {
        "pytorch_model.bin": "format", "pytorch_model-00001-of-00002.bin": "format",
        "tf_model.h5": "format", "flax_model.msgpack": "format", "onnx/model.onnx": "format",
        "consolidated.00.pth": "format", "openvino_model.bin": "format", "model.gguf": "format",
        "consolidated.safetensors": "format",
    }  # fmt: skip
    for name, data in (kept | dict.fromkeys(dropped, b"weights")).items():
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_bytes(data)
    (model / ".git" / "lfs").mkdir(parents=True)
    (model / ".git" / "lfs" / "big").write_bytes(b"big")
    save_file({"embed.weight": torch.ones(2, 2)}, model / "model.fp16.safetensors")
    save_file({"lora_A": torch.ones(2, 2)}, model / "adapter_model.safetensors")
    os.utime(model / "vocab.txt", (1, 1))
    ledger = quantize_directory(model, tmp_path / "out", "mxfp8")
    found = contents(tmp_path / "out")
    for name, data in kept.items():
        assert found.pop(name) == data
    assert (tmp_path / "out" / "vocab.txt").stat().st_mtime == 1
    assert found.keys() == {
        "config.json", "tokenizer.json", "model.safetensors", "blockscale_ledger.json",
        "adapter_model.safetensors",
    }  # fmt: skip
    assert set(ledger.copied) == kept.keys() | {"tokenizer.json", "adapter_model.safetensors"}
    assert ledger.left_out == {
        **dict.fromkeys(dropped, "the float weights in another format"),
        ".git": "a hidden folder, such as .git or a download cache",
        "model.fp16.safetensors": "a second copy of the weights",
    }
    written = json.loads((tmp_path / "out" / "blockscale_ledger.json").read_text())
    assert written["left_out"] == ledger.left_out


@pytest.mark.slow
def test_links_are_followed_as_in_the_cache_of_hugging_face(tmp_path):
    real = write_model(tmp_path / "blobs", tiny_tensors(), 2)
    (real / "sub").mkdir()
    (real / "sub" / "a.txt").write_text("a")
    model = tmp_path / "snapshot"
    model.mkdir()
    for path in real.iterdir():
        (model / path.name).symlink_to(path)
    quantize_directory(model, tmp_path / "out", "mxfp4")
    quantize_directory(real, tmp_path / "straight", "mxfp4")
    out, straight = contents(tmp_path / "out"), contents(tmp_path / "straight")
    for each in (out, straight):
        del each["blockscale_ledger.json"]  # says where the source is
    assert out == straight
    assert not any(path.is_symlink() for path in (tmp_path / "out").rglob("*"))


def test_any_safetensors_file_is_a_shard_without_an_index(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    save_file({"a.weight": torch.ones(4, 4)}, model / "one.safetensors")
    save_file({"b.weight": torch.ones(4, 4)}, model / "two.safetensors")
    ledger = quantize_directory(model, tmp_path / "out", "int8")
    assert [entry.name for entry in ledger.quantized] == ["a.weight", "b.weight"]
    assert contents(tmp_path / "out").keys() == {
        "one.safetensors", "two.safetensors", "blockscale_ledger.json"
    }  # fmt: skip


def test_no_model(place, tmp_path):
    place.model = tmp_path / "nowhere"
    place.refuses("nowhere does not exist: name the directory that holds config.json")
    place.model = tmp_path / "model" / "config.json"
    place.refuses("config.json is a file: name the directory")
    place.model = tmp_path / "bin"
    place.model.mkdir()
    place.refuses(r"bin holds no \*.safetensors, only nothing: write it with save_pretrained")
    (place.model / "pytorch_model.bin").write_text("")
    changed(place).refuses(r"bin holds no \*.safetensors, only pytorch_model.bin: write it with")


def test_broken_models(place):
    config = place.model / "config.json"
    text = config.read_text()
    config.write_text("{")
    changed(place).refuses("config.json is not JSON: .*: download or copy it again")
    config.write_text("[]")
    changed(place).refuses("config.json holds a list, expected a JSON object")
    config.write_text(json.dumps({"quantization_config": {"quant_method": "gptq"}}))
    changed(place).refuses("the weights are already quantized, by gptq: quantize the float model")
    config.write_text(json.dumps({"quantization_config": "odd"}))
    changed(place).refuses(r"the weights are already quantized, by \?: quantize the float model")
    config.write_text(text)
    shard = place.model / "model-00002-of-00002.safetensors"
    data = shard.read_bytes()
    shard.write_bytes(data[:-4])
    changed(place).refuses("00002.safetensors: not a whole safetensors file: it has")
    shard.unlink()
    changed(place).refuses(
        "00002.safetensors is missing, though model.safetensors.index.json names"
    )
    shard.write_bytes(data)
    (place.model / "gone.txt").symlink_to("nowhere")
    changed(place).refuses("gone.txt is a broken link: remove it")
    (place.model / "gone.txt").unlink()
    (place.model / "loop").symlink_to(".")
    place.before = {}
    with pytest.raises(FileError, match="loop is a link to a folder that it lies in"):
        quantize_directory(place.model, place.out, "mxfp4")


def test_broken_indexes(place):
    path = place.model / "model.safetensors.index.json"
    index = json.loads(path.read_text())

    def write(weight_map):
        path.write_text(json.dumps({"weight_map": weight_map}))
        return changed(place)

    first, second = sorted(set(index["weight_map"].values()))
    write({"x": first, "y": second}).refuses(
        "index.json says that '.*' is (in|nowhere).*, but it is in"
    )
    write({"x": "../out.safetensors"}).refuses(
        "out.safetensors', which is not inside the directory"
    )
    path.write_text(json.dumps(index | {"metadata": True}))
    changed(place).refuses("index.json is damaged .its metadata are not an object")
    save_file({}, place.folder / "other.safetensors")
    write({"x": "../other.safetensors"}).refuses("'../other.safetensors', which is not inside")
    path.write_text(json.dumps(index))
    save_file({"x": torch.ones(2, 2)}, place.model / "model.safetensors")
    changed(place).refuses("holds both model.safetensors and model.safetensors.index.json")
    (place.model / "model.safetensors").unlink()
    path.unlink()
    save_file({"embed.weight": torch.ones(2, 2)}, place.model / "z.safetensors")
    changed(place).refuses(
        "'embed.weight' is in model-00001-of-00002.safetensors and in z.safetensors"
    )


def test_already_quantized(place):
    quantize_directory(place.model, place.folder / "quantized", "mxfp4")
    (place.folder / "quantized" / "config.json").unlink()
    place.model = place.folder / "quantized"
    changed(place).refuses(
        "safetensors is already quantized by blockscale: quantize the float model"
    )
