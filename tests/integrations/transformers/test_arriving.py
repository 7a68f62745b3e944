# SPDX-License-Identifier: BSD-3-Clause
"""Tensors of files under the names of a model."""

from pathlib import Path
from typing import Any

import torch
from transformers.core_model_loading import Concatenate, WeightConverter, WeightRenaming

import blockscale as bs
from blockscale.files.stored_model import open_stored_model
from blockscale.integrations.transformers.arriving import Arriving, Renames


class Model(torch.nn.Module):
    base_model_prefix = "base"

    def __init__(self) -> None:
        super().__init__()
        self.new = torch.nn.Linear(32, 8)
        self.both = torch.nn.Linear(32, 16)


def stored(path: Path) -> Any:
    layers = {name: torch.nn.Linear(32, 8) for name in ("old", "one", "two", "left")}
    model = torch.nn.ModuleDict(layers)
    bs.quantize_(model, bs.Recipe("mxfp4", input="mxfp8"))
    bs.save(model, path / "model.safetensors")
    return open_stored_model(path)


def test_names_layers_and_what_is_fused(tmp_path: Path) -> None:
    source = stored(tmp_path)
    fuse = WeightConverter(["one.weight", "two.weight"], "both.weight", [Concatenate(0)])
    renames = Renames(Model(), [WeightRenaming("^old", "new"), fuse])
    metadata, fused = renames.metadata(source)
    assert renames.names == {"new.weight": "old.weight"}
    assert renames.layers == {"new": "old"}
    assert metadata.layers == {"new": source.metadata.layers["old"]}
    assert set(fused) == {id(fuse)}
    assert {pattern: [name for name, _ in each] for pattern, each in fused[id(fuse)].items()} == {
        "one.weight": ["one.weight"],
        "two.weight": ["two.weight"],
    }
    assert not fuse.was_used()  # asking leaves transformers' own as they were


def test_what_has_arrived_is_not_read_again(tmp_path: Path) -> None:
    source = stored(tmp_path)
    arriving = Arriving(
        path=source.path, files={}, kinds={}, metadata=source.metadata, source=source
    )
    arriving.add_parts("new.weight", "old.weight")
    names = ["new.weight.codes", "new.weight.scale"]
    codes, scale = (source.read([f"old.weight.{part}"])[f"old.weight.{part}"] for part in
                    ("codes", "scale"))  # fmt: skip
    arriving.arrived["new.weight.codes"] = codes + 1
    found = arriving.read(names)
    assert torch.equal(found["new.weight.codes"], codes + 1)
    assert torch.equal(found["new.weight.scale"], scale)
    arriving.hold("x", torch.ones(2))
    assert arriving.kinds["x"] == (torch.float32, (2,))
