# SPDX-License-Identifier: BSD-3-Clause
"""What save_pretrained writes: our own file, under the checkpoint's names."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale.core.recipe import Recipe
from blockscale.files.metadata import Metadata, TensorInfo
from blockscale.files.stored_model import open_stored_model
from blockscale.integrations.transformers.saving import renamed, state_and_metadata, stored_names
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


def test_renamed_names_everything() -> None:
    info = TensorInfo("int8", (2, 2))
    old = Metadata({"a.weight": info}, {"a": {"input": "int8"}}, {"b.weight": "a.weight"})
    new = renamed(old, {"a.weight.codes": "x.a.weight.codes", "b.weight.codes": "b.weight.codes"})
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
