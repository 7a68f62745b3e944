# SPDX-License-Identifier: BSD-3-Clause
"""Directories are laid out before their tensors are there, in shards where they are large."""

import json
from pathlib import Path

import pytest
import torch

import blockscale as bs
from blockscale.export.conversion import directory
from blockscale.export.writers.writer import Planned, writer_of
from tests.support.conversion_models import tensors, write


def test_shards_and_their_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "SHARD", 100_000)
    held = tensors("uint4:group128:fp16:asym")
    folder = write(tmp_path / "m", held, "gptq")
    files = sorted(each.name for each in folder.glob("*.safetensors"))
    assert len(files) > 2 and files[0] == f"model-00001-of-{len(files):05}.safetensors"
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == set(files)
    with bs.checkpoint(folder) as found:
        assert set(found) == set(held)
        q = found["model.layers.0.mlp.up_proj.weight"]
        assert torch.equal(q.packed, held["model.layers.0.mlp.up_proj.weight"].packed)


def test_two_tensors_of_one_name(tmp_path: Path) -> None:
    fmt = bs.parse("uint4:group32:fp16:asym")
    planned = [Planned("a.weight", (32, 32), fmt), Planned("a.scales", (3,), None)]
    with pytest.raises(ValueError, match=r"a\.scales and a\.weight would both be stored as a\.sca"):
        directory.Directory(tmp_path, writer_of("gptq"), planned, {})
