# SPDX-License-Identifier: BSD-3-Clause
"""GGUF files that gguf 0.19.0 wrote: its own values, from its own codes, on our kernels."""

import shutil
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import blockscale as bs
from blockscale.export.checkpoints.gguf import reading
from blockscale.export.checkpoints.gguf.records import TYPES
from blockscale.export.writers import PlannedTensor
from blockscale.export.writers.gguf_files.file import GGUFFile, MetadataValue, encoded
from tests.support.gguf_reading import RECORDED, SMALL, SPLIT

VALUES = load_file(RECORDED / "gguf_values.safetensors")


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal values; scales are any bytes, so that some are NaN."""
    return bool(((found == expected) | (found.isnan() & expected.isnan())).all())


@pytest.mark.parametrize("path", [SMALL, SPLIT, SPLIT.with_name("split-00002-of-00002.gguf")])
def test_values(path: Path) -> None:
    with bs.checkpoint(path) as model:
        assert model.producer == "GGUF" and model.evidence == "it begins with GGUF"
        assert set(VALUES) <= set(model) and len(model) == len(VALUES) + 2
        for name, expected in VALUES.items():
            tensor = model[name]
            found = tensor.dequantize() if isinstance(tensor, bs.QTensor) else tensor
            assert found.shape == expected.shape == model.stored[name].shape
            assert same(found, expected), name
        quantized = [name for name in model if isinstance(model.stored[name].format, str)]
        assert len(quantized) == len(TYPES) - 1  # gguf 0.19.0 writes no Q2_0


def test_bytes_again() -> None:
    """What was read is written with the same bytes: nothing of the blocks is lost."""
    data = SMALL.read_bytes()
    with bs.checkpoint(SMALL) as model:
        for name, of in TYPES.items():
            if (stored := model.stored.get(f"blk.0.{name}.weight")) is None or name == "TQ1_0":
                continue
            q = model[stored.name]
            assert isinstance(q, bs.QTensor)
            count = q.shape.numel() // of.elements
            parts = {part: getattr(q.qparams, part).reshape(count, -1)
                     for part in q.format.parts if part != "outer" or name != "NVFP4"}  # fmt: skip
            parts["codes"] = q.codes.reshape(count, -1)
            assert bytes(of.together(parts).flatten().tolist()) in data, name


def test_a_layer_runs_on_kernels() -> None:
    with bs.checkpoint(SMALL) as model:
        q = model["blk.0.Q4_K.weight"]
    assert isinstance(q, bs.QTensor)
    x = torch.randn(3, q.shape[1])
    finite = q.dequantize().nan_to_num(0, 0, 0)
    assert torch.isfinite(x @ finite.T).all()
    with bs.use("reference"):
        expected = q.dequantize(torch.bfloat16)
    assert same(q.dequantize(torch.bfloat16), expected)


def test_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_CHUNK", 300)
    with bs.checkpoint(SMALL) as model:
        for name in ("blk.0.Q6_K.weight", "blk.0.Q8_0.weight", "norm"):
            tensor = model[name]
            found = tensor.dequantize() if isinstance(tensor, bs.QTensor) else tensor
            assert same(found, VALUES[name])


def test_what_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "find_spec", lambda name: None)
    with bs.checkpoint(SMALL) as model:
        stored = model.stored["blk.0.IQ2_XXS.weight"]
        assert (stored.kind, stored.format, stored.shape) == ("IQ2_XXS", None, (2, 768))
        assert stored.bits == 66 * 8 / 256
        with pytest.raises(bs.FileError, match="holds vectors of a ggml grid"):
            model["blk.0.IQ2_XXS.weight"]
        with pytest.raises(KeyError):
            model["other"]


@pytest.mark.parametrize(
    ("name", "place", "value", "reason"),
    [
        ("MXFP4", 17, 255, "a scale code 255"),
        ("NVFP4", 1, 0x80, "a scale that is negative or NaN"),
        ("TQ2_0", 5, 0b11, "a code 3 where only"),
    ],
)
def test_bytes_that_no_writer_stores(
    name: str, place: int, value: int, reason: str, tmp_path: Path
) -> None:
    data = bytearray(SMALL.read_bytes())
    entry = reading.read_container(SMALL).entries[f"blk.0.{name}.weight"]
    data[entry.start + place] = value
    (tmp_path / "m.gguf").write_bytes(data)
    with bs.checkpoint(tmp_path / "m.gguf") as model, pytest.raises(bs.FileError, match=reason):
        model[f"blk.0.{name}.weight"]


def changed(tmp_path: Path, old: bytes, new: bytes) -> Path:
    data = SMALL.read_bytes()
    assert len(old) == len(new) and data.count(old) >= 1
    path = tmp_path / "m.gguf"
    path.write_bytes(data.replace(old, new, 1))
    return path


def of(name: bytes, dims: tuple[int, ...], kind: int) -> bytes:
    return name + b"".join(n.to_bytes(size, "little") for n, size in
                           ((len(dims), 4), *((n, 8) for n in dims), (kind, 4)))  # fmt: skip


def test_rows_that_are_no_whole_blocks(tmp_path: Path) -> None:
    name = b"blk.0.Q4_0.weight"
    path = changed(tmp_path, of(name, (96, 2), 2), of(name, (64, 3), 12))
    with pytest.raises(
        bs.FileError,
        match=r"Q4_K has the shape .3, 64., whose rows do not divide into blocks of 256",
    ):
        bs.checkpoint(path)


def test_a_type_of_the_future(tmp_path: Path) -> None:
    name = b"blk.0.Q4_0.weight"
    path = changed(tmp_path, of(name, (96, 2), 2), of(name, (96, 2), 99))
    with bs.checkpoint(path) as model:
        assert model.stored[name.decode()].kind == "type 99"
        with pytest.raises(bs.FileError, match="an unknown type"):
            model[name.decode()]
        assert isinstance(model["blk.0.Q4_1.weight"], bs.QTensor)


def test_tensors_that_share_bytes(tmp_path: Path) -> None:
    name = b"blk.0.Q4_0.weight"
    path = changed(tmp_path, of(name, (96, 2), 2), of(name, (96, 2), 0))
    with pytest.raises(bs.FileError, match="share bytes"):
        bs.checkpoint(path)


def test_a_tensor_beyond_the_end(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(SMALL.read_bytes()[:-20])
    with pytest.raises(bs.FileError, match="ends at byte"):
        bs.checkpoint(path)


def test_a_missing_part(tmp_path: Path) -> None:
    shutil.copy(SPLIT, tmp_path)
    with pytest.raises(bs.FileError, match=r"split-00002-of-00002\.gguf of its 2 files is missing"):
        bs.checkpoint(tmp_path / SPLIT.name)


def test_parts_that_do_not_belong_together(tmp_path: Path) -> None:
    first, second = tmp_path / SPLIT.name, tmp_path / "split-00002-of-00002.gguf"
    shutil.copy(SPLIT, first)
    shutil.copy(SPLIT, second)
    with pytest.raises(bs.FileError, match="is in another of its files, too"):
        bs.checkpoint(first)
    empty = b"GGUF" + (3).to_bytes(4, "little") + bytes(16)
    second.write_bytes(empty)
    with pytest.raises(bs.FileError, match=r"its 2 files hold \d+ tensors, and the first declares"):
        bs.checkpoint(first)


SMALL_of_grids = Path(__file__).parents[3] / "recorded" / "small.gguf"
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
    planned = [PlannedTensor("blk.0.ffn_up.weight", (1, 256), None, torch.uint8, "IQ3_S")]
    metadata = {"general.architecture": encoded(MetadataValue("text", "qwen2"))}
    file = GGUFFile(path, planned, metadata, 32, {})
    file.write("blk.0.ffn_up.weight", torch.full((1, 110), 7, dtype=torch.uint8))
    file.close()
    return path


def test_with_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    monkeypatch.setattr(reading, "_ROWS", 132)  # two blocks at a time
    with bs.checkpoint(SMALL_of_grids) as found:
        blocks = found.blocks(NAME).reshape(-1, 66)
        assert found.stored[NAME].unread == "" and found.stored[NAME].format is None
        expected = blocks[:, :1].float().expand(-1, 256).reshape(2, 768)
        assert torch.equal(found[NAME], expected)
        assert any("they are read as float32" in each for each in found.warnings)


def test_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "find_spec", lambda name: None)
    with bs.checkpoint(SMALL_of_grids) as found, pytest.raises(bs.FileError) as error:
        found[NAME]
    assert "IQ2_XXS holds vectors of a ggml grid, which no format here has" in str(error.value)
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
    with pytest.warns(
        UserWarning, match="'blk.0.ffn_up.weight' and 0 more hold vectors of a ggml grid"
    ):
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
    found = reading.dequantized("IQ2_XXS", blocks, 66, (3, 512))
    of = gguf.GGMLQuantizationType.IQ2_XXS
    assert torch.equal(found.reshape(6, 256), torch.from_numpy(gguf.dequantize(blocks.numpy(), of)))
