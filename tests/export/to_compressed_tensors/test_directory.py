"""Directories appear whole or not at all; weights are split where they are large."""

import json

import pytest
import torch
from safetensors.torch import load_file

from blockscale.export.to_compressed_tensors import directory
from blockscale.files.directory import output
from blockscale.files.metadata import FileError


def test_shards_and_their_index(tmp_path, monkeypatch):
    monkeypatch.setattr(directory, "SHARD", 100)
    tensors = {name: torch.arange(16.0) + i for i, name in enumerate("abc")}  # 64 bytes each
    directory.write(tmp_path, {"x": 1}, tensors)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 192
    assert len(set(index["weight_map"].values())) == 3
    for name, file in index["weight_map"].items():
        assert torch.equal(load_file(tmp_path / file)[name], tensors[name])


def test_places(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="is a file: name a directory"):
        directory.check_directory(tmp_path / "file")
    with pytest.raises(ValueError, match="exists and is not empty"):
        directory.check_directory(tmp_path)
    with pytest.raises(ValueError, match="is not a directory: create it first"):
        directory.check_directory(tmp_path / "no" / "out")
    assert directory.check_directory(tmp_path / "out") == tmp_path / "out"


def test_what_is_known_before_any_work(tmp_path, monkeypatch):
    with pytest.raises(FileError, match="is too long: a run needs"):
        directory.check_directory(tmp_path / ("n" * 240))
    monkeypatch.setattr(output, "mounts_in", lambda path: [path])
    (tmp_path / "out").mkdir()
    with pytest.raises(FileError, match="is a mount point"):
        directory.check_directory(tmp_path / "out")
