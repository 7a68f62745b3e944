# SPDX-License-Identifier: BSD-3-Clause
"""What save_pretrained writes: our own file, under the checkpoint's names."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers.core_model_loading import Concatenate, WeightConverter, WeightRenaming

import blockscale as bs
from blockscale.core.recipe import Recipe
from blockscale.files.metadata import Metadata, TensorInfo
from blockscale.files.renaming_apart import conversions_of
from blockscale.files.stored_model import open_stored_model
from blockscale.integrations.transformers.saving import (
    Arriving,
    Renames,
    rename,
    state_and_metadata,
    stored_names,
)
from tests.support.transformers_models import llama, llava, mixtral, same_bits

Checkpoints = Callable[[str], tuple[type, Path]]


def test_bs_load_reads_it(tmp_path: Path) -> None:
    model: Any = llama()
    bs.quantize_(model, bs.Recipe("mxfp4", input="mxfp8"))
    model.save_pretrained(tmp_path, max_shard_size="4KB")
    same_bits(model, bs.load(llama(), tmp_path))


def test_names_are_the_checkpoint_s(tmp_path: Path) -> None:
    """Renamed tensors have the names in files that transformers gives them, in tensors and
    metadata alike."""
    model: Any = llava()
    model.save_pretrained(tmp_path / "float")
    bs.quantize_(model, "mxfp4")
    model.save_pretrained(tmp_path / "out")
    floats, found = (open_stored_model(tmp_path / each) for each in ("float", "out"))
    assert set(found.metadata.tensors) < set(floats.files)
    assert found.plain() < set(floats.files)
    ours = {name for name, _ in model.named_modules()}
    assert not {name.removesuffix(".weight") for name in found.metadata.tensors} <= ours


def test_parameters_that_would_be_split_keep_their_names() -> None:
    model: Any = mixtral()
    bs.quantize_(model, "mxfp4")
    state, _ = state_and_metadata(model)
    names = stored_names(model, [name for name in state if name.endswith(".codes")])
    assert any(name.endswith("experts.gate_up_proj.codes") for name in names.values())


def test_a_saved_model_goes_to_other_layouts(tmp_path: Path) -> None:
    """Saving keeps codes of fused experts whole; exporters take them apart after it as before."""
    model: Any = mixtral()
    bs.quantize_(model, Recipe("fp8", skip=["*embed*", "*.gate", "lm_head"]))
    before = conversions_of(model)
    for name in ("once", "twice"):
        model.save_pretrained(tmp_path / name)
    assert [type(each) for each in conversions_of(model)] == [type(each) for each in before]
    files = [load_file(tmp_path / name / "model.safetensors") for name in ("once", "twice")]
    assert set(files[0]) == set(files[1])
    bs.export.compressed_tensors(model, tmp_path / "servers")
    with bs.checkpoint(tmp_path / "servers") as result:
        assert any(".experts.3.w1.weight" in name for name in result)


def test_renamed_names_everything() -> None:
    info = TensorInfo("int8", (2, 2))
    old = Metadata({"a.weight": info}, {"a": {"input": "int8"}}, {"b.weight": "a.weight"})
    new = rename(old, {"a.weight.codes": "x.a.weight.codes", "b.weight.codes": "b.weight.codes"})
    assert new == Metadata(
        {"x.a.weight": info}, {"x.a": {"input": "int8"}}, {"b.weight": "x.a.weight"}
    )


def test_what_holds_no_data_is_refused_before_writing(tmp_path: Path) -> None:
    with torch.device("meta"):
        model: Any = llama()
    fresh: Any = llama()
    bs.quantize_(fresh, Recipe("mxfp4", skip=["lm_head"]))
    fresh.lm_head = model.lm_head
    with pytest.raises(ValueError, match=r"lm_head\.weight holds no data"):
        fresh.save_pretrained(tmp_path / "out")
    assert not list((tmp_path / "out").glob("*"))


# Tensors of files under the names of a model.


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
    arriving.in_memory["new.weight.codes"] = codes + 1
    found = arriving.read(names)
    assert torch.equal(found["new.weight.codes"], codes + 1)
    assert torch.equal(found["new.weight.scale"], scale)
    arriving.hold("x", torch.ones(2))
    assert arriving.kinds["x"] == (torch.float32, (2,))
