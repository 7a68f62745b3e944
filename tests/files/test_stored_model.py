"""Files and directories that are truncated, incomplete or something else are refused."""

import json

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import blockscale as bs
from tests.files.saved import Net, bits, quantized, refused


def test_truncated(path) -> None:
    data = path.read_bytes()
    for sevenths in range(7):
        path.write_bytes(data[: len(data) * sevenths // 7])
        refused(path, "not a whole safetensors file")
    path.write_bytes(data[:-1])
    refused(path, "not a whole safetensors file")


def test_a_second_file_beside_the_model_is_not_read(path) -> None:
    save_file({"adapter": torch.ones(2)}, path.parent / "adapter_model.safetensors")
    assert bits(bs.load(Net(), path.parent).eval()) == bits(quantized())


def test_other_files(tmp_path) -> None:
    file, folder = tmp_path / "model.safetensors", tmp_path / "model"
    refused(file, "does not exist")
    for content in (b"", b"{}", b"PK\x03\x04" + bytes(100), b"\xff" * 100):
        file.write_bytes(content)
        refused(file, "is not a whole safetensors file")
    refused(file / "inside", "inside")
    folder.mkdir()
    refused(folder, "holds no safetensors file")
    save_file({"x": torch.ones(2)}, file)
    refused(file, "it lacks .*it has x")


def test_shards(path, tmp_path) -> None:
    """A directory with an index, as `blockscale quantize` writes; read without one, too."""
    folder, stored = tmp_path / "model", load_file(path)
    folder.mkdir()
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    names = sorted(stored)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for name, each in parts.items():
        save_file({n: stored[n] for n in each}, folder / name, metadata)
    index = folder / "model.safetensors.index.json"
    text = json.dumps({"weight_map": {n: name for name, each in parts.items() for n in each}})
    for write in (lambda: index.write_text(text), index.unlink):
        write()
        assert bits(bs.load(Net(), folder).eval()) == bits(quantized())
    for content in ("[]", "{", "{}", '{"weight_map": {"a": 5}}', '{"weight_map": []}', "\x00"):
        index.write_text(content)
        refused(folder, "is damaged")
    index.write_text(text)
    (folder / "b.safetensors").rename(folder / "c.safetensors")
    refused(folder, "b.safetensors is missing, though model.safetensors.index.json names it")
