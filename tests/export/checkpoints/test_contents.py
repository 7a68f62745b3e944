# SPDX-License-Identifier: BSD-3-Clause
"""inspect: whose a checkpoint is, with evidence, formats, bits and layers."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import blockscale as bs
from blockscale.export.checkpoints.contents import inspect
from blockscale.files.inspect import inspect as inspect_files

RECORDED = Path(__file__).parents[2] / "recorded"


@pytest.mark.parametrize(
    ("name", "producer", "evidence", "unread"),
    [
        ("small.gguf", "GGUF", "it begins with GGUF", 1),
        ("split-00001-of-00002.gguf", "GGUF", "it begins with GGUF", 1),
        ("openvino/INT4_SYM.xml", "OpenVINO", "INT4_SYM.xml is an IR: it begins <net", 0),
        ("modelopt.safetensors", "NVIDIA ModelOpt", "it has nvfp4.weight_scale_2", 0),
    ],
)
def test_whose_it_is(name, producer, evidence, unread):
    found = inspect(RECORDED / name)
    assert (found.producer, found.evidence, len(found.unread)) == (producer, evidence, unread)
    data = json.loads(json.dumps(found.to_dict()))
    assert (data["producer"], data["evidence"], data["warnings"][:0]) == (producer, evidence, [])
    with bs.checkpoint(RECORDED / name) as model:
        assert [row["name"] for row in data["tensors"]] == sorted(model)
        for row in found.rows:
            stored = model.stored[row.name]
            assert (row.shape, row.nbytes) == (stored.shape, stored.nbytes)
            assert row.file in found.files
            assert row.bits == pytest.approx(stored.bits)


def test_ours_as_before(tmp_path):
    model = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 8))
    bs.quantize_(model, bs.Recipe("nvfp4", "int8:token:fp32"))
    bs.save(model, tmp_path / "m.safetensors")
    found = inspect(tmp_path / "m.safetensors")
    assert found.rows == inspect_files(tmp_path / "m.safetensors").rows
    assert (found.producer, found.evidence) == ("blockscale", "its metadata have `blockscale`")


def test_layers(tmp_path):
    names = [f"model.layers.{i}.{part}.weight" for i in range(12) for part in ("q", "k")]
    names += [f"vision.blocks.{i}.w" for i in range(3)]
    save_file({name: torch.ones(2) for name in names}, tmp_path / "model.safetensors")
    assert inspect(tmp_path).layers == 12
    save_file({"a": torch.ones(2)}, tmp_path / "a.safetensors")
    assert inspect(tmp_path / "a.safetensors").layers == 0


def test_a_weight_whose_parts_lie_in_shards(tmp_path):
    codes = torch.zeros(4, 8).to(torch.float8_e4m3fn)
    save_file({"m.weight": codes}, tmp_path / "a.safetensors")
    save_file({"m.weight_scale_inv": torch.ones(1, 1)}, tmp_path / "b.safetensors")
    [row] = inspect(tmp_path).rows
    assert (row.name, row.file, row.nbytes) == ("m.weight", "a.safetensors", 36)


def test_missing_shards_and_an_index_that_errs(tmp_path):
    save_file({"m.weight": torch.zeros(4, 8)}, tmp_path / "a.safetensors")
    index = {"weight_map": {"m.weight": "a.safetensors", "n.weight": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(bs.FileError, match=r"b\.safetensors is missing"):
        inspect(tmp_path)
    save_file({"o.weight": torch.zeros(4, 8)}, tmp_path / "b.safetensors")
    with pytest.raises(bs.FileError, match="says that"):
        inspect(tmp_path)


def test_a_file_type_that_errs(tmp_path):
    """GGUF's general.file_type names the type of most tensors; here none is of it."""
    data = (RECORDED / "small.gguf").read_bytes()
    key = b"general.name"
    old = len(key).to_bytes(8, "little") + key + (8).to_bytes(4, "little")
    at = data.index(old) + len(old)
    length = int.from_bytes(data[at : at + 8], "little")
    for told, warned in ((7, 0), (25, 0), (0, 0), (32, 1)):
        name = b"general.file_type"
        new = len(name).to_bytes(8, "little") + name + (4).to_bytes(4, "little")
        new += told.to_bytes(4, "little")
        added = len(new) - len(old) - 8 - length
        fill = b"x" * (-added % 32)  # tensors stay at multiples of 32
        changed = data[: at - len(old)] + new + data[at + 8 + length :]
        if fill:
            changed = _padded(changed, len(fill))
        (tmp_path / "m.gguf").write_bytes(changed)
        found = inspect(tmp_path / "m.gguf")
        assert len(found.warnings) == warned
        assert not warned or found.warnings == (
            "general.file_type is BF16, and no tensor has that type",
        )


def _padded(data: bytes, count: int) -> bytes:
    """A GGUF file with one more key, of `count` bytes more or less a multiple of 32."""
    keys = int.from_bytes(data[16:24], "little")
    size = 8 + 1 + 4 + 8  # length, name, type, length of the text
    text = b"x" * ((count - size) % 32)
    key = (1).to_bytes(8, "little") + b"p" + (8).to_bytes(4, "little")
    key += len(text).to_bytes(8, "little") + text
    return data[:16] + (keys + 1).to_bytes(8, "little") + key + data[24:]
