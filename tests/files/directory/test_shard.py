# SPDX-License-Identifier: BSD-3-Clause
"""One safetensors file of a run."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import blockscale as bs
from blockscale.files.directory import journal as journals
from blockscale.files.directory import shard
from blockscale.files.directory.quantize_directory import quantize_directory
from blockscale.files.metadata import FileError
from blockscale.files.verify import reproduce
from tests.files.directory.places import Listener


def test_a_source_that_changes(place):
    class Meddler(Listener):
        def advance(self, name, nbytes):
            os.utime(place.model / "model-00001-of-00002.safetensors")

    with pytest.raises(FileError, match=r"00001-of-00002.safetensors changed while it was read"):
        quantize_directory(place.model, place.out, "nvfp4", progress=Meddler())
    assert not place.out.exists()


def test_many_small_tensors_share_a_wait(model, tmp_path, monkeypatch):
    waits = []
    real = shard.StreamWriter.sync
    monkeypatch.setattr(shard.StreamWriter, "sync", lambda self: (waits.append(1), real(self)))
    monkeypatch.setattr(journals, "SECONDS", 1e9)
    quantize_directory(model, tmp_path / "out", "nvfp4")
    assert len(waits) == 4  # two a shard: its tensors, and its end


RECIPE = bs.Recipe(
    "profile:gguf.q8_0",
    rules={
        "a": "profile:gguf.q4_k@0.19",
        "b": "profile:quanto.qint8",
        "d": "profile:bnb.nf4",
        "e": "int8_channel",
        "f": "profile:modelopt.nvfp4",
        "g": "profile:compressed_tensors.mxfp4",
    },
)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(256, 128), nn.Linear(128, 64).bfloat16()
        self.c, self.d = nn.Conv2d(32, 8, 3), nn.Linear(96, 8)
        self.e, self.f, self.g = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64)


@pytest.mark.slow
def test_a_model_and_its_directory_get_the_producers_codes(
    tmp_path: Path,
) -> None:
    plain, model, loaded = Model(), Model(), Model()
    ledger = bs.quantize_(model, RECIPE)
    (tmp_path / "in").mkdir()
    save_file(plain.state_dict(), tmp_path / "in" / "model.safetensors")
    told = quantize_directory(tmp_path / "in", tmp_path / "out", RECIPE)
    bs.load(loaded, tmp_path / "out")
    for name, layer in plain.named_children():
        scheme, _ = RECIPE.decide(name)
        stored = layer.weight.detach()
        stored = stored.movedim(1, -1).contiguous() if name == "c" else stored
        q = bs.quantize(stored, scheme.profile or scheme.weight)
        for made in (model, loaded):
            tensor = made.get_submodule(name).qweight.tensor
            assert tensor.format == q.format
            assert torch.equal(tensor.packed, q.packed.reshape(tensor.packed.shape))
        assert ledger[name].weight == told[f"{name}.weight"].weight == str(q.format)
        assert ledger[name].details == told[f"{name}.weight"].details == scheme.note
    kept = json.loads((tmp_path / "out" / "blockscale_ledger.json").read_text())
    assert bs.Recipe.from_dict(kept["recipe"]) == RECIPE
    assert kept["recipe"]["rules"]["a"]["weight"] == "profile:gguf.q4_k@0.19.0"
    assert not reproduce(tmp_path / "out", tmp_path / "in").wrong


def test_what_a_producer_refuses_is_skipped_with_its_reason(tmp_path: Path) -> None:
    layers = nn.Sequential(nn.Linear(256, 8), nn.Linear(8, 8))
    layers.register_parameter("experts", nn.Parameter(torch.randn(4, 64, 256)))
    (tmp_path / "in").mkdir()
    save_file(layers.state_dict(), tmp_path / "in" / "model.safetensors")
    recipe = bs.Recipe(rules={"*": "profile:gguf.q4_k"})
    with pytest.warns(UserWarning, match=r"1\.weight: skipped, profile gguf\.q4_k: rows of 256"):
        ledger = quantize_directory(tmp_path / "in", tmp_path / "out", recipe)
    with pytest.warns(UserWarning, match=r"1: skipped, profile gguf\.q4_k: rows of 256"):
        made = bs.quantize_(layers, recipe)
    for told, names in ((ledger, ("1.weight", "experts")), (made, ("1", "experts"))):
        assert "rows of 256 do not divide" in told[names[0]].reason
        assert told[names[1]].reason == "profile gguf.q4_k is only for the weights of layers"
        assert {e.name for e in told.skipped} == set(names)
