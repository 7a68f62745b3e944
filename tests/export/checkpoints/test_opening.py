# SPDX-License-Identifier: BSD-3-Clause
"""What a path is, by what is in it."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import blockscale as bs
from blockscale.export.checkpoints.contents import inspect
from blockscale.export.checkpoints.opening import readers

RECORDED = Path(__file__).parents[2] / "recorded"


def test_by_what_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes((RECORDED / "small.gguf").read_bytes())
    assert bs.checkpoint(tmp_path / "model.bin").producer == "GGUF"  # whatever its name
    save_file({"a": torch.ones(2)}, tmp_path / "m.safetensors")
    assert bs.checkpoint(tmp_path / "m.safetensors").producer == "safetensors"
    found = bs.checkpoint(str(tmp_path))
    assert found.producer == "safetensors" and found.evidence == "it holds 1 safetensors file"


def test_nothing_that_is_known(tmp_path: Path) -> None:
    with pytest.raises(bs.FileError, match="does not exist"):
        bs.checkpoint(tmp_path / "none")
    producers = (getattr(each.reader, "producer", "") for each in readers())
    kinds = ", ".join(sorted(filter(None, producers)))
    assert "GGUF" in kinds and "safetensors" in kinds
    (tmp_path / "notes.txt").write_bytes(b"words")
    for path in (tmp_path, tmp_path / "notes.txt"):
        told = f"{path}: unrecognised checkpoint format; supported: {kinds}"
        for read in (bs.checkpoint, inspect, lambda path: bs.load(nn.Linear(2, 2), path)):
            with pytest.raises(bs.FileError, match=f"^{re.escape(told)}$"):
                read(path)
        with pytest.raises(bs.FileError, match=f"^{re.escape(told)}$"):
            bs.export.convert_checkpoint(path, tmp_path / "to", "blockscale")


def test_every_reader_says_how_it_knows_and_whose_files_it_reads() -> None:
    found = readers()
    assert len(found) >= 5
    for each in found:
        assert callable(each.recognize) and callable(each.reader)
        assert each.recognize(Path(__file__)) is None
