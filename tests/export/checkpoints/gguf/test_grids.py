"""IQ1 to IQ3 as float32 where the package gguf is, and a refusal that says so where it is not."""

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.export.checkpoints.gguf import grids
from blockscale.export.writers.gguf_files.file import GGUFFile
from blockscale.export.writers.gguf_files.head import Value, encoded
from blockscale.export.writers.writer import Planned

SMALL = Path(__file__).parents[3] / "recorded" / "small.gguf"
NAME = "blk.0.IQ2_XXS.weight"


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package gguf whose blocks are their own first byte, 256 times."""
    made = ModuleType("gguf")
    made.__spec__ = ModuleSpec("gguf", None)
    made.GGMLQuantizationType = {"IQ2_XXS": 16, "IQ3_S": 21}
    made.quants = SimpleNamespace(
        dequantize=lambda rows, of: np.repeat(rows[:, :1].astype(np.float32), 256, axis=1)
    )
    monkeypatch.setitem(sys.modules, "gguf", made)


def file_of(path: Path) -> Path:
    """One block of IQ3_S, whose first byte is 7, as ffn_up of a qwen2."""
    planned = [Planned("blk.0.ffn_up.weight", (1, 256), None, torch.uint8, "IQ3_S")]
    metadata = {"general.architecture": encoded(Value("text", "qwen2"))}
    file = GGUFFile(path, planned, metadata, 32, {})
    file.write("blk.0.ffn_up.weight", torch.full((1, 110), 7, dtype=torch.uint8))
    file.close()
    return path


def test_with_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    monkeypatch.setattr(grids, "_ROWS", 132)  # two blocks at a time
    with bs.checkpoint(SMALL) as found:
        blocks = found.blocks(NAME).reshape(-1, 66)
        assert found.stored[NAME].unread == "" and found.stored[NAME].format is None
        expected = blocks[:, :1].float().expand(-1, 256).reshape(2, 768)
        assert torch.equal(found[NAME], expected)
        assert any("they are read as float32" in each for each in found.warnings)


def test_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grids, "find_spec", lambda name: None)
    with bs.checkpoint(SMALL) as found, pytest.raises(bs.FileError) as error:
        found[NAME]
    assert "IQ2_XXS holds vectors of a grid" in str(error.value)
    assert "pip install 'blockscale[gguf]'" in str(error.value)


def test_a_model_with_one_such_tensor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = file_of(tmp_path / "m.gguf")
    stand_in(monkeypatch)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.ModuleDict({"mlp": nn.ModuleDict({})})])
            self.layers[0]["mlp"]["up_proj"] = nn.Linear(256, 1, bias=False)

    model = nn.ModuleDict({"model": Model()})
    with pytest.warns(UserWarning, match=r"'blk.0.ffn_up.weight' and 0 more hold vectors of grids"):
        bs.load(model, path)
    weight = model["model"].layers[0]["mlp"]["up_proj"].weight
    assert torch.equal(weight, torch.full((1, 256), 7.0))


def test_converted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """To GGUF the bytes are copied, with the package and without; elsewhere they become float32."""
    path = file_of(tmp_path / "m.gguf")
    stand_in(monkeypatch)
    done = bs.export.convert_checkpoint(path, tmp_path / "same.gguf", "gguf")
    assert [each.how for each in done.tensors] == ["copied"]
    assert (tmp_path / "same.gguf").read_bytes() == path.read_bytes()
    done = bs.export.convert_checkpoint(path, tmp_path / "d", "blockscale", names="keep")
    [one] = done.tensors
    assert (one.how, one.written, one.notes) == ("dequantized", "float32", ("float32 now",))
    with bs.checkpoint(tmp_path / "d") as found:
        assert torch.equal(found["blk.0.ffn_up.weight"], torch.full((1, 256), 7.0))


def test_the_package_itself() -> None:
    gguf = pytest.importorskip("gguf")
    blocks = torch.randint(0, 256, (6, 66), dtype=torch.uint8, generator=torch.manual_seed(0))
    blocks[:, 0], blocks[:, 1] = 0, 0x3C  # a scale of 1
    found = grids.dequantized("IQ2_XXS", blocks, 66, (3, 512))
    of = gguf.GGMLQuantizationType.IQ2_XXS
    assert torch.equal(found.reshape(6, 256), torch.from_numpy(gguf.dequantize(blocks.numpy(), of)))
