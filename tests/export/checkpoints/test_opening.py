"""What a path is, by what is in it."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import blockscale as bs

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
    kinds = "GGUF, ONNX, OpenVINO, safetensors"
    (tmp_path / "notes.txt").write_bytes(b"words")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(bs.FileError, match=f"no kind that is known here; read are: {kinds}$"):
            bs.checkpoint(path)
